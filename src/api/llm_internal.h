/* What an nmlp_llm holds, for the files that implement its functions. */
#ifndef NMLP_API_LLM_INTERNAL_H
#define NMLP_API_LLM_INTERNAL_H

#include "neuronmlp/llm.h"
#include "service/text_session.h"

struct nmlp_llm {
    nmlp_loaded loaded;
    nmlp_loaded draft; /* empty: none */
    nmlp_tokenizer *tokenizer;
    nmlp_text_session *session;
    nmlp_text_result result;
    nmlp_ids ids;  /* of the last tokenize */
    nmlp_str text; /* of the last detokenize */
};

#endif
