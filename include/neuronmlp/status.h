/* Status codes and error reports shared by every neuronmlp call that can fail.
 *
 * A function that can fail returns nmlp_status and fills an optional nmlp_err (NULL is accepted): the
 * message names the file, tensor, shape or field at fault, what was found and what was expected; the hint,
 * where there is one, says what to do next. */
#ifndef NEURONMLP_STATUS_H
#define NEURONMLP_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum nmlp_status {
    NMLP_OK = 0,
    NMLP_E_ARG = 1,           /* the caller passed something that can never work */
    NMLP_E_NOMEM = 2,         /* out of memory */
    NMLP_E_IO = 100,          /* the operating system refused a file operation */
    NMLP_E_FORMAT = 110,      /* a file is not what its format says */
    NMLP_E_UNSUPPORTED = 120, /* well formed, but outside what this build supports */
    NMLP_E_SHAPE = 130,       /* a tensor's shape or dtype is not the expected one */
    NMLP_E_MISSING = 140,     /* a required tensor, key or file is absent */
    NMLP_E_NUMERIC = 150,     /* NaN or Inf where finite values are required */
    NMLP_E_LIMIT = 160,       /* a limit of the model or machine would be exceeded */
    NMLP_E_ILLEGAL = 400,     /* a tile program breaks a rule of its machine */
    NMLP_E_INTERRUPTED = 900  /* stopped by the user */
} nmlp_status;

enum { NMLP_ERR_MESSAGE_MAX = 1024, NMLP_ERR_HINT_MAX = 256, NMLP_ERR_FIELD_MAX = 64 };

typedef struct nmlp_err {
    nmlp_status code;
    char message[NMLP_ERR_MESSAGE_MAX];
    char hint[NMLP_ERR_HINT_MAX];
    char field[NMLP_ERR_FIELD_MAX]; /* the option or request field at fault; the message begins with it. "": none */
} nmlp_err;

#ifdef __cplusplus
}
#endif

#endif
