/* A conversation with a model on the terminal: what was said is remembered, answers come as they are made, Ctrl-C stops
 * an answer and not the program. */
#ifndef NMLP_CLI_CONVERSATION_H
#define NMLP_CLI_CONVERSATION_H

#include "service/text_session.h"

typedef struct nmlp_conversation_options {
    const char *system; /* first message, or NULL */
    int64_t max_new;    /* tokens of an answer */
    nmlp_sampling sampling;
    bool ignore_eos;
} nmlp_conversation_options;

/* Whether somebody types on standard input. */
bool nmlp_conversation_possible(void);

/* Reads messages from standard input until its end or "/exit". */
nmlp_status nmlp_conversation_run(nmlp_text_session *session, const nmlp_tokenizer *tokenizer,
                                  const nmlp_conversation_options *options, nmlp_err *err);

#endif
