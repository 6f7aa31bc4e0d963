/* Encodes and decodes many texts with one tokenizer, for comparing with another library.
 *   nmlp_tokenize_lines TOKENIZER none|template < hexadecimal texts, one a line
 * prints "IDS|HEX" for each: its ids, and what they decode to, special tokens included. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

static size_t unhex(char *line) {
    size_t n = strcspn(line, "\n") / 2;
    for (size_t i = 0; i < n; i++) {
        const char digits[3] = {line[2 * i], line[2 * i + 1], 0};
        line[i] = (char)strtol(digits, NULL, 16);
    }
    return n;
}

int main(int argc, char **argv) {
    nmlp_err err = {0};
    nmlp_tokenizer *t = NULL;
    nmlp_ids ids;
    nmlp_str text;
    char *line = NULL;
    size_t capacity = 0;
    if (argc != 3 || nmlp_tokenizer_load(&t, argv[1], &err) != NMLP_OK) {
        fprintf(stderr, "%s\n", argc != 3 ? "usage: nmlp_tokenize_lines TOKENIZER none|template" : err.message);
        return 1;
    }
    nmlp_bos bos = strcmp(argv[2], "template") == 0 ? NMLP_BOS_TEMPLATE : NMLP_BOS_NONE;
    nmlp_ids_init(&ids);
    nmlp_str_init(&text);
    while (getline(&line, &capacity, stdin) >= 0) {
        size_t len = unhex(line);
        ids.len = 0;
        nmlp_str_clear(&text);
        if (nmlp_tokenizer_encode(t, line, len, bos, true, &ids, &err) != NMLP_OK ||
            nmlp_tokenizer_decode(t, ids.data, ids.len, false, &text, &err) != NMLP_OK) {
            printf("error: %s\n", err.message);
            continue;
        }
        for (size_t i = 0; i < ids.len; i++) printf("%s%d", i ? " " : "", ids.data[i]);
        putchar('|');
        for (size_t i = 0; i < text.len; i++) printf("%02x", (unsigned char)text.data[i]);
        putchar('\n');
    }
    free(line);
    nmlp_ids_fini(&ids);
    nmlp_str_fini(&text);
    nmlp_tokenizer_destroy(t);
    return 0;
}
