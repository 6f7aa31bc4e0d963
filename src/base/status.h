/* How functions inside neuronmlp report failure. Contract of the codes: include/neuronmlp/status.h.
 *
 * Idiom: `nmlp_status st = NMLP_OK;` first, one `out:` label that releases in reverse order, NMLP_TRY for
 * calls that can fail. Functions with nothing to release use NMLP_RETURN_IF_FAILED instead. */
#ifndef NMLP_BASE_STATUS_H
#define NMLP_BASE_STATUS_H

#include <stdint.h>

#include "neuronmlp/status.h"

#define NMLP_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))

/* Fills `err` (may be NULL) and returns `code`. */
nmlp_status nmlp_fail(nmlp_err *err, nmlp_status code, const char *fmt, ...) NMLP_PRINTF(3, 4);

/* The same for a value of an option or request field: the message is the field's name, a space and the text, as in
 * "temperature" and "is -1; it must be 0 or more". Callers who know the field by another name find it in err->field. */
nmlp_status nmlp_fail_field(nmlp_err *err, nmlp_status code, const char *field, const char *fmt, ...) NMLP_PRINTF(4, 5);

/* NMLP_OK for a value from `least` to `most`, else NMLP_E_ARG naming the field and its bounds. */
nmlp_status nmlp_check_count(const char *field, int64_t value, int64_t least, int64_t most, nmlp_err *err);

/* Puts "where: " in front of the message of a failed call. */
void nmlp_fail_context(nmlp_err *err, const char *fmt, ...) NMLP_PRINTF(2, 3);

/* Adds what the user can do about it. Here and in messages a field other than the one at fault stands in backquotes
 * ("raise `context`"): the command line turns it into its flag. */
void nmlp_fail_hint(nmlp_err *err, const char *fmt, ...) NMLP_PRINTF(2, 3);

#define NMLP_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        st = (expr);                                                                                                   \
        if (st != NMLP_OK) goto out;                                                                                   \
    } while (0)

#define NMLP_RETURN_IF_FAILED(expr)                                                                                    \
    do {                                                                                                               \
        nmlp_status st_ = (expr);                                                                                      \
        if (st_ != NMLP_OK) return st_;                                                                                \
    } while (0)

#endif
