#include "text/encode_file.h"

#include "base/file.h"

static const size_t text_max_bytes = (size_t)1 << 32;

nmlp_status nmlp_encode_file(const char *model_dir, const char *path, nmlp_ids *ids, nmlp_err *err) {
    nmlp_status st = NMLP_OK;
    nmlp_tokenizer *tokenizer = NULL;
    nmlp_str text;
    nmlp_str_init(&text);
    NMLP_TRY(nmlp_tokenizer_load(&tokenizer, model_dir, err));
    NMLP_TRY(nmlp_file_read(&text, path, text_max_bytes, err));
    NMLP_TRY(nmlp_tokenizer_encode(tokenizer, nmlp_str_text(&text), text.len, false, false, ids, err));
out:
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(tokenizer);
    return st;
}
