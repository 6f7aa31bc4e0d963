#include "lib/tokenizers.h"

#include <stdbool.h>

/* bytes_to_unicode of GPT-2: printable bytes first, the others get 256, 257, ... in order. */
static int letter_of(int wanted) {
    int n_others = 0;
    for (int byte = 0; byte < 256; byte++) {
        bool printable =
            (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
        if (byte == wanted) return printable ? byte : 256 + n_others;
        n_others += !printable;
    }
    return -1;
}

void nmlp_test_byte_letter(nmlp_str *out, int byte) {
    int c = letter_of(byte);
    if (c < 0x80) {
        nmlp_str_putc(out, (char)c);
    } else {
        nmlp_str_putc(out, (char)(0xC0 | c >> 6));
        nmlp_str_putc(out, (char)(0x80 | (c & 0x3F)));
    }
}

static const char *or_default(const char *text, const char *otherwise) { return text ? text : otherwise; }

void nmlp_test_tokenizer_json(nmlp_str *out, const nmlp_test_tokenizer_spec *spec) {
    nmlp_str_puts(out, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int byte = 0; byte < 256; byte++) {
        nmlp_str_puts(out, byte == '"' || byte == '\\' ? "\"\\" : "\"");
        nmlp_test_byte_letter(out, byte);
        nmlp_str_printf(out, "\": %d%s", byte, byte < 255 ? ", " : "");
    }
    nmlp_str_printf(out, "%s%s}, \"merges\": [%s]%s%s}", spec->vocab ? ", " : "", or_default(spec->vocab, ""),
                    or_default(spec->merges, ""), spec->model_options ? ", " : "", or_default(spec->model_options, ""));
    nmlp_str_printf(out, ", \"added_tokens\": [%s]", or_default(spec->added_tokens, ""));
    nmlp_str_printf(out, ", \"normalizer\": %s", or_default(spec->normalizer, "null"));
    nmlp_str_printf(out, ", \"pre_tokenizer\": %s",
                    or_default(spec->pre_tokenizer, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"));
    nmlp_str_printf(out, ", \"post_processor\": %s", or_default(spec->post_processor, "null"));
    nmlp_str_printf(out, ", \"decoder\": %s}", or_default(spec->decoder, "{\"type\": \"ByteLevel\"}"));
}
