/* Fuzzes chat templates and conversations. Input: a template, a NUL, messages as JSON (a fixed conversation when there
 * is no NUL). Spans must be sorted and inside the text. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "text/chat_template.h"
#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const nmlp_chat_text *out) {
    size_t end = 0;
    for (size_t i = 0; i < out->n_spans; i++) {
        if (out->spans[i].begin < end || out->spans[i].end <= out->spans[i].begin) __builtin_trap();
        end = out->spans[i].end;
    }
    if (end > out->text.len) __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char conversation[] =
        "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"<|x|> \\u00e9\\n\"},"
        "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"i\", \"function\": {\"name\": \"f\","
        "\"arguments\": {\"a\": [1, 2.5, true]}}}]}]";
    nmlp_err err;
    nmlp_chat_template *t;
    nmlp_str messages;
    nmlp_chat_text out;
    const uint8_t *nul = memchr(data, 0, size);
    size_t len = nul ? (size_t)(nul - data) : size;
    nmlp_str_init(&messages);
    nmlp_chat_text_init(&out);
    if (nul)
        nmlp_str_append(&messages, nul + 1, size - len - 1);
    else
        nmlp_str_puts(&messages, conversation);
    if (nmlp_chat_template_parse(&t, (const char *)data, len, "{\"bos_token\": \"<s>\"}", &err) == NMLP_OK) {
        const nmlp_chat_render_options options = {.add_generation_prompt = true,
                                                  .tools_json = "[{\"function\": {\"name\": \"f\"}}]",
                                                  .kwargs_json = "{\"enable_thinking\": false}",
                                                  .now_seconds = 1};
        if (nmlp_chat_template_render(t, nmlp_str_text(&messages), &options, &out, &err) == NMLP_OK) check(&out);
        nmlp_chat_template_destroy(t);
    }
    nmlp_chat_text_fini(&out);
    nmlp_str_fini(&messages);
    return 0;
}
