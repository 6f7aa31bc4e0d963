/* Ask a chat model, on a CPU or a GPU:  ./chat MODEL "Why is the sky blue?" [cpu|cuda|auto] */
#include <neuronmlp/llm.h>
#include <stdio.h>

static int print_piece(void *ctx, const char *text, size_t len) {
    (void)ctx;
    return fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    nmlp_llm *llm;
    nmlp_err err;
    nmlp_llm_options options;
    nmlp_llm_request request;
    nmlp_llm_result result;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL QUESTION [cpu|cuda|auto]\n", argv[0]);
        return 2;
    }
    const nmlp_llm_message messages[] = {{"system", "Answer in one sentence."}, {"user", argv[2]}};
    nmlp_llm_options_init(&options, sizeof options);
    nmlp_llm_request_init(&request, sizeof request);
    nmlp_llm_result_init(&result, sizeof result);
    options.device = argc > 3 ? argv[3] : "auto";
    request.messages = messages;
    request.n_messages = 2;
    request.on_text = print_piece;
    nmlp_status st = nmlp_llm_open(&llm, argv[1], &options, &err);
    if (st == NMLP_OK) {
        st = nmlp_llm_run(llm, &request, &result, &err);
        nmlp_llm_close(llm);
    }
    if (st != NMLP_OK) {
        fprintf(stderr, "%s\n%s\n", err.message, err.hint);
        return 1;
    }
    printf("\n%lld prompt tokens, %.0f ms to the first; %lld generated at %.1f tokens/s\n",
           (long long)result.prompt_tokens, result.ttft_ms, (long long)result.generated_tokens, result.decode_tok_s);
}
