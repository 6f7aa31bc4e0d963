/* An interpreter of the Jinja that chat templates are written in; for the files of src/text only.
 *
 * jinja_lexer.c makes tokens of a source, jinja_parse*.c a tree of them, jinja_eval.c walks the tree with the
 * operators, filters, tests and methods of the files of those names. Failures stick to the run (run->status), as
 * appends stick to an nmlp_str: functions that return a value return `undefined` then, and callers look before they go
 * on. Memory, steps, depth and output are bounded. */
#ifndef NMLP_TEXT_JINJA_INTERNAL_H
#define NMLP_TEXT_JINJA_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/str.h"

enum {
    NMLP_JINJA_SOURCE_MAX_BYTES = 1 << 20,
    NMLP_JINJA_DEPTH_MAX = 200,
    NMLP_JINJA_STEPS_MAX = 5000000,
    NMLP_JINJA_OUTPUT_MAX_BYTES = 32 << 20,
    NMLP_JINJA_MEMORY_MAX_BYTES = 256 << 20,
};

/* ---- memory ---- */

typedef struct nmlp_jinja_chunk nmlp_jinja_chunk;
typedef struct nmlp_jinja_heap {
    nmlp_jinja_chunk *chunks;
    size_t used_bytes, total_bytes;
} nmlp_jinja_heap;

/* Zeroed; NULL when the limit is reached. Released all at once. */
void *nmlp_jinja_alloc(nmlp_jinja_heap *heap, size_t bytes);
void nmlp_jinja_heap_fini(nmlp_jinja_heap *heap);

/* ---- values ---- */

typedef enum nmlp_jinja_kind {
    NMLP_JINJA_UNDEFINED,
    NMLP_JINJA_NONE,
    NMLP_JINJA_BOOL,
    NMLP_JINJA_INT,
    NMLP_JINJA_FLOAT,
    NMLP_JINJA_STRING,
    NMLP_JINJA_LIST,
    NMLP_JINJA_DICT,
    NMLP_JINJA_CALLABLE,
    NMLP_JINJA_LOOP
} nmlp_jinja_kind;

typedef struct nmlp_jinja_string {
    const char *data; /* valid UTF-8 */
    size_t len;
    const char *user; /* [len] 1 for bytes that came from a user; NULL: none did */
} nmlp_jinja_string;

typedef struct nmlp_jinja_list nmlp_jinja_list;
typedef struct nmlp_jinja_dict nmlp_jinja_dict;
typedef struct nmlp_jinja_callable nmlp_jinja_callable;
typedef struct nmlp_jinja_loop nmlp_jinja_loop;
typedef struct nmlp_jinja_node nmlp_jinja_node;
typedef struct nmlp_jinja_scope nmlp_jinja_scope;

typedef struct nmlp_jinja_value {
    nmlp_jinja_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const nmlp_jinja_string *s;
        nmlp_jinja_list *list;
        nmlp_jinja_dict *dict;
        const nmlp_jinja_callable *callable;
        nmlp_jinja_loop *loop;
    } as;
} nmlp_jinja_value;

struct nmlp_jinja_list {
    nmlp_jinja_value *items;
    size_t n, capacity;
    bool is_tuple;
};

struct nmlp_jinja_dict {
    nmlp_jinja_value *keys, *values;
    size_t n, capacity;
    bool is_namespace;
};

struct nmlp_jinja_loop {
    const nmlp_jinja_list *items;
    size_t index;
    int depth;
    nmlp_jinja_value last_changed; /* of loop.changed() */
};

typedef enum nmlp_jinja_call {
    NMLP_JINJA_MACRO,
    NMLP_JINJA_CALLER,
    NMLP_JINJA_GLOBAL,
    NMLP_JINJA_METHOD
} nmlp_jinja_call;

struct nmlp_jinja_callable {
    nmlp_jinja_call type;
    const nmlp_jinja_node *macro; /* MACRO, CALLER */
    nmlp_jinja_scope *scope;      /* where it was defined */
    const char *name;             /* GLOBAL, METHOD */
    nmlp_jinja_value self;        /* METHOD */
};

/* ---- the tree ---- */

typedef enum nmlp_jinja_node_type {
    /* expressions */
    NMLP_JINJA_LITERAL,
    NMLP_JINJA_NAME,
    NMLP_JINJA_LIST_DISPLAY, /* children; `flag`: a tuple */
    NMLP_JINJA_DICT_DISPLAY, /* children: key, value, key, ... */
    NMLP_JINJA_ATTRIBUTE,    /* children[0] . text */
    NMLP_JINJA_ITEM,         /* children[0] [ children[1] ] */
    NMLP_JINJA_SLICE,        /* children[0] [ 1 : 2 : 3 ], NULL where absent */
    NMLP_JINJA_CALL,         /* children[0] ( rest ) */
    NMLP_JINJA_KEYWORD,      /* text = children[0], in calls */
    NMLP_JINJA_FILTER,       /* children[0] | text ( rest ) */
    NMLP_JINJA_TEST,         /* children[0] is text ( rest ); `flag`: is not */
    NMLP_JINJA_UNARY,        /* op */
    NMLP_JINJA_BINARY,       /* op */
    NMLP_JINJA_COMPARE,      /* children[0] then pairs of NMLP_JINJA_BINARY's op with children[i] */
    NMLP_JINJA_AND,
    NMLP_JINJA_OR,
    NMLP_JINJA_CONDITIONAL, /* children: then, test, else or NULL */
    /* statements */
    NMLP_JINJA_TEXT,       /* text */
    NMLP_JINJA_OUTPUT,     /* children[0] */
    NMLP_JINJA_BODY,       /* children */
    NMLP_JINJA_IF,         /* children: test, body, else or NULL */
    NMLP_JINJA_FOR,        /* children: target, iterable, body, else or NULL, filter or NULL; `flag`: recursive */
    NMLP_JINJA_SET,        /* children: target, value */
    NMLP_JINJA_SET_BLOCK,  /* children: target, body, filter over a placeholder or NULL */
    NMLP_JINJA_MACRO_DEF,  /* text; children: body, then parameters as KEYWORD (children[0] is NULL without default) */
    NMLP_JINJA_CALL_BLOCK, /* children: call, body */
    NMLP_JINJA_FILTER_BLOCK, /* children: filter over a placeholder, body */
    NMLP_JINJA_WITH,         /* children: body, then targets and values */
    NMLP_JINJA_BREAK,
    NMLP_JINJA_CONTINUE,
} nmlp_jinja_node_type;

typedef enum nmlp_jinja_op {
    NMLP_JINJA_ADD,
    NMLP_JINJA_SUB,
    NMLP_JINJA_MUL,
    NMLP_JINJA_DIV,
    NMLP_JINJA_FLOORDIV,
    NMLP_JINJA_MOD,
    NMLP_JINJA_POW,
    NMLP_JINJA_CONCAT,
    NMLP_JINJA_EQ,
    NMLP_JINJA_NE,
    NMLP_JINJA_LT,
    NMLP_JINJA_LE,
    NMLP_JINJA_GT,
    NMLP_JINJA_GE,
    NMLP_JINJA_IN,
    NMLP_JINJA_NOT_IN,
    NMLP_JINJA_NOT,
    NMLP_JINJA_NEG,
    NMLP_JINJA_POS
} nmlp_jinja_op;

struct nmlp_jinja_node {
    nmlp_jinja_node_type type;
    nmlp_jinja_op op;
    int line;
    bool flag;
    const char *text; /* NUL-ended names; of TEXT: len bytes */
    size_t len;
    nmlp_jinja_value literal;
    nmlp_jinja_node **children;
    size_t n_children, capacity;
    nmlp_jinja_op *ops; /* of COMPARE: [n_children - 1] */
};

/* ---- lexing and parsing ---- */

typedef enum nmlp_jinja_token_type {
    NMLP_JINJA_T_TEXT,
    NMLP_JINJA_T_OUTPUT_BEGIN,
    NMLP_JINJA_T_OUTPUT_END,
    NMLP_JINJA_T_BLOCK_BEGIN,
    NMLP_JINJA_T_BLOCK_END,
    NMLP_JINJA_T_NAME,
    NMLP_JINJA_T_STRING, /* unescaped */
    NMLP_JINJA_T_INT,
    NMLP_JINJA_T_FLOAT,
    NMLP_JINJA_T_OPERATOR, /* spelled in text, NUL-ended */
    NMLP_JINJA_T_END
} nmlp_jinja_token_type;

typedef struct nmlp_jinja_token {
    nmlp_jinja_token_type type;
    int line;
    const char *text;
    size_t len;
    int64_t i;
    double f;
} nmlp_jinja_token;

typedef struct nmlp_jinja_tokens {
    nmlp_jinja_token *items;
    size_t n, capacity;
} nmlp_jinja_tokens;

/* `heap` owns the tokens' texts, the caller the list (nmlp_mem_free). */
nmlp_status nmlp_jinja_lex(nmlp_jinja_tokens *out, nmlp_jinja_heap *heap, const char *source, size_t len,
                           nmlp_err *err);
/* The whole template as one BODY; nodes live in `heap`. */
nmlp_status nmlp_jinja_parse(nmlp_jinja_node **out, nmlp_jinja_heap *heap, const char *source, size_t len,
                             nmlp_err *err);

/* ---- running ---- */

typedef struct nmlp_jinja_variable {
    const char *name;
    nmlp_jinja_value value;
} nmlp_jinja_variable;

struct nmlp_jinja_scope {
    nmlp_jinja_scope *parent;
    nmlp_jinja_variable *variables;
    size_t n, capacity;
};

/* Text that is being built, and whose bytes are a user's. */
typedef struct nmlp_jinja_text {
    nmlp_str bytes, user;
} nmlp_jinja_text;

typedef enum nmlp_jinja_flow { NMLP_JINJA_GOES_ON, NMLP_JINJA_BREAKS, NMLP_JINJA_CONTINUES } nmlp_jinja_flow;

typedef struct nmlp_jinja_run {
    nmlp_jinja_heap heap;
    nmlp_status status;
    nmlp_err *err;
    int line; /* of the statement at hand */
    int depth, loop_depth;
    int64_t steps;
    nmlp_jinja_text *out;
    nmlp_jinja_scope *globals;
    nmlp_jinja_flow flow;
    int64_t now_seconds; /* of strftime_now */
} nmlp_jinja_run;

/* Sets the failure, "line N: ...", and returns undefined; the first stays. */
nmlp_jinja_value nmlp_jinja_fail(nmlp_jinja_run *run, nmlp_status code, const char *fmt, ...) NMLP_PRINTF(3, 4);
/* Counts work; false once the run has failed or used its steps up. */
bool nmlp_jinja_step(nmlp_jinja_run *run, size_t steps);

/* Arguments of a call: positions first, keywords after. */
typedef struct nmlp_jinja_args {
    const nmlp_jinja_value *values;
    const char *const *names; /* NULL for positions */
    size_t n;
} nmlp_jinja_args;

/* The nth position, or the keyword; NULL when neither is given. */
const nmlp_jinja_value *nmlp_jinja_arg(const nmlp_jinja_args *args, size_t nth, const char *name);

/* Values. */
nmlp_jinja_value nmlp_jinja_bool(bool b);
nmlp_jinja_value nmlp_jinja_int(int64_t i);
nmlp_jinja_value nmlp_jinja_none(void);
nmlp_jinja_value nmlp_jinja_undefined(void);
nmlp_jinja_value nmlp_jinja_string_new(nmlp_jinja_run *run, const char *data, size_t len, bool user);
nmlp_jinja_value nmlp_jinja_cstring(nmlp_jinja_run *run, const char *text);
nmlp_jinja_value nmlp_jinja_substring(nmlp_jinja_run *run, const nmlp_jinja_string *s, size_t begin, size_t end);
nmlp_jinja_value nmlp_jinja_list_new(nmlp_jinja_run *run, bool is_tuple);
void nmlp_jinja_list_push(nmlp_jinja_run *run, nmlp_jinja_list *list, nmlp_jinja_value item);
nmlp_jinja_value nmlp_jinja_dict_new(nmlp_jinja_run *run);
void nmlp_jinja_dict_put(nmlp_jinja_run *run, nmlp_jinja_dict *dict, nmlp_jinja_value key, nmlp_jinja_value value);
const nmlp_jinja_value *nmlp_jinja_dict_get(nmlp_jinja_run *run, const nmlp_jinja_dict *dict, nmlp_jinja_value key);
const nmlp_jinja_value *nmlp_jinja_dict_find(nmlp_jinja_run *run, const nmlp_jinja_dict *dict, const char *key);
bool nmlp_jinja_is_true(nmlp_jinja_value v);
bool nmlp_jinja_equal(nmlp_jinja_run *run, nmlp_jinja_value a, nmlp_jinja_value b);
/* -1, 0, 1; fails for values without an order. */
int nmlp_jinja_order(nmlp_jinja_run *run, nmlp_jinja_value a, nmlp_jinja_value b);
bool nmlp_jinja_is_text(nmlp_jinja_value v, const char *text);
size_t nmlp_jinja_chars(const nmlp_jinja_string *s);
const char *nmlp_jinja_kind_name(nmlp_jinja_value v);
/* What a `for` goes through; fails for values that cannot be. */
const nmlp_jinja_list *nmlp_jinja_iterate(nmlp_jinja_run *run, nmlp_jinja_value v);

/* Building text. */
void nmlp_jinja_text_init(nmlp_jinja_text *text);
void nmlp_jinja_text_fini(nmlp_jinja_text *text);
void nmlp_jinja_text_add(nmlp_jinja_run *run, nmlp_jinja_text *text, const char *data, size_t len, const char *user);
void nmlp_jinja_text_puts(nmlp_jinja_run *run, nmlp_jinja_text *text, const char *data);
void nmlp_jinja_text_add_string(nmlp_jinja_run *run, nmlp_jinja_text *text, const nmlp_jinja_string *s);
/* str() of Python. */
void nmlp_jinja_text_add_value(nmlp_jinja_run *run, nmlp_jinja_text *text, nmlp_jinja_value v);
/* The finished text as a value; `text` is released. */
nmlp_jinja_value nmlp_jinja_text_take(nmlp_jinja_run *run, nmlp_jinja_text *text);
nmlp_jinja_value nmlp_jinja_to_string(nmlp_jinja_run *run, nmlp_jinja_value v);

/* JSON; strings read from it are a user's when `user`. */
nmlp_jinja_value nmlp_jinja_json_read(nmlp_jinja_run *run, const char *text, size_t len, bool user);
/* json.dumps of Python. */
typedef struct nmlp_jinja_json_style {
    int indent; /* < 0: on one line */
    bool ensure_ascii, sort_keys;
    const nmlp_jinja_string *item_separator, *key_separator; /* NULL: Python's own */
} nmlp_jinja_json_style;

void nmlp_jinja_json_write(nmlp_jinja_run *run, nmlp_jinja_text *out, nmlp_jinja_value v,
                           const nmlp_jinja_json_style *style);
void nmlp_jinja_format_float(char *out, size_t out_bytes, double f); /* repr() of Python */

/* Behaviour. */
nmlp_jinja_value nmlp_jinja_filter(nmlp_jinja_run *run, const char *name, nmlp_jinja_value v,
                                   const nmlp_jinja_args *args);
bool nmlp_jinja_test(nmlp_jinja_run *run, const char *name, nmlp_jinja_value v, const nmlp_jinja_args *args);
bool nmlp_jinja_has_method(nmlp_jinja_value self, const char *name);
nmlp_jinja_value nmlp_jinja_method(nmlp_jinja_run *run, nmlp_jinja_value self, const char *name,
                                   const nmlp_jinja_args *args);
nmlp_jinja_value nmlp_jinja_attribute(nmlp_jinja_run *run, nmlp_jinja_value v, const char *name, bool item_first);
nmlp_jinja_value nmlp_jinja_item(nmlp_jinja_run *run, nmlp_jinja_value v, nmlp_jinja_value key);
nmlp_jinja_value nmlp_jinja_slice(nmlp_jinja_run *run, nmlp_jinja_value v, nmlp_jinja_value first,
                                  nmlp_jinja_value last, nmlp_jinja_value by);
nmlp_jinja_value nmlp_jinja_unary(nmlp_jinja_run *run, nmlp_jinja_op op, nmlp_jinja_value v);
nmlp_jinja_value nmlp_jinja_binary(nmlp_jinja_run *run, nmlp_jinja_op op, nmlp_jinja_value a, nmlp_jinja_value b);
bool nmlp_jinja_compare(nmlp_jinja_run *run, nmlp_jinja_op op, nmlp_jinja_value a, nmlp_jinja_value b);
nmlp_jinja_value nmlp_jinja_callable_new(nmlp_jinja_run *run, nmlp_jinja_callable callable);
nmlp_jinja_value nmlp_jinja_call_value(nmlp_jinja_run *run, nmlp_jinja_value callee, const nmlp_jinja_args *args);
void nmlp_jinja_set(nmlp_jinja_run *run, nmlp_jinja_scope *scope, const char *name, nmlp_jinja_value value);
/* Runs a whole template into run->out. */
void nmlp_jinja_execute(nmlp_jinja_run *run, const nmlp_jinja_node *body);

#endif
