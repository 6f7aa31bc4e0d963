/* Any bytes as config.json: parsing never crashes, and an accepted config survives being written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static nmlp_status read_config(nmlp_config *config, const char *text, size_t len) {
    nmlp_json_doc doc;
    nmlp_err err;
    if (nmlp_json_parse(&doc, text, len, "fuzz", &err) != NMLP_OK) return NMLP_E_FORMAT;
    nmlp_status st = nmlp_config_parse(config, &doc, &err);
    nmlp_json_free(&doc);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nmlp_config config;
    nmlp_config again;
    nmlp_str text;
    if (read_config(&config, (const char *)data, size) != NMLP_OK) return 0;
    nmlp_str_init(&text);
    nmlp_config_write(&config, NULL, NULL, 0, &text);
    if (read_config(&again, nmlp_str_text(&text), text.len) != NMLP_OK) abort();
    if (again.hidden != config.hidden || again.head_dim != config.head_dim || again.rope.theta != config.rope.theta)
        abort();
    nmlp_str_fini(&text);
    return 0;
}
