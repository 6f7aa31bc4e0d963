#include "checkpoint/model_card.h"

#include <string.h>

#include "base/file.h"

void nmlp_model_card_put_name(nmlp_str *out, const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    nmlp_str_printf(out, "%.*s", (int)(end - begin), path + begin);
}

void nmlp_model_card_begin(nmlp_str *out, const char *base_dir, const char *what, const char *sentence,
                           const char *tag) {
    nmlp_str_puts(out, "---\nlibrary_name: transformers\npipeline_tag: text-generation\nbase_model: ");
    nmlp_model_card_put_name(out, base_dir);
    nmlp_str_puts(out, "\ntags:\n- neuronmlp\n");
    if (tag) nmlp_str_printf(out, "- %s\n", tag);
    nmlp_str_puts(out, "---\n\n# ");
    nmlp_model_card_put_name(out, base_dir);
    nmlp_str_printf(out, ", %s\n\n%s\n\n| | |\n|---|---|\n", what, sentence);
}

void nmlp_model_card_end(nmlp_str *out, nmlp_card_use use) {
    nmlp_str_puts(out, "\n## Use\n\n```\nneuronmlp run DIR -p \"Once upon a time\"\n```\n\n");
    if (use != NMLP_CARD_USE_HERE)
        nmlp_str_printf(out,
                        "```python\nfrom transformers import AutoModelForCausalLM\n"
                        "model = AutoModelForCausalLM.from_pretrained(DIR%s)\n```\n\n",
                        use == NMLP_CARD_USE_REMOTE_CODE ? ", trust_remote_code=True" : "");
    nmlp_str_puts(out, "Perplexity and divergence are of held-out parts of the calibration text, not of a benchmark. "
                       "The licence is that of\nthe original model.\n");
}

nmlp_status nmlp_model_card_save(const nmlp_str *card, const char *dir, nmlp_err *err) {
    char path[4096];
    NMLP_RETURN_IF_FAILED(nmlp_str_status(card, err));
    NMLP_RETURN_IF_FAILED(nmlp_path_join(path, sizeof path, dir, "README.md", err));
    return nmlp_file_write_text(path, nmlp_str_text(card), card->len, err);
}
