/* Load a checkpoint and continue a text:  ./generate models/tiny "The old house" */
#include <neuronmlp/llm.h>
#include <stdio.h>

static int print_piece(void *ctx, const char *text, size_t len) {
    (void)ctx;
    return fwrite(text, 1, len, stdout) == len ? 0 : 1;
}

int main(int argc, char **argv) {
    nmlp_llm *llm;
    nmlp_err err;
    nmlp_llm_request request;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    nmlp_llm_request_init(&request, sizeof request);
    request.max_new = 32;
    nmlp_status st = nmlp_llm_open(&llm, argv[1], NULL, &err);
    if (st == NMLP_OK) {
        printf("%s", argv[2]);
        st = nmlp_llm_generate(llm, argv[2], &request, print_piece, NULL, &err);
        printf("\n");
        nmlp_llm_close(llm);
    }
    if (st != NMLP_OK) fprintf(stderr, "%s\n", err.message);
    return st == NMLP_OK ? 0 : 1;
}
