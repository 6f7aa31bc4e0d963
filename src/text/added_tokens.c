#include "text/added_tokens.h"

#include "text/unicode.h"
#include "text/utf8.h"

struct nmlp_trie_node {
    nmlp_trie_node *sibling; /* same depth, another byte */
    nmlp_trie_node *child;
    nmlp_added_token token;
    bool is_end;
    unsigned char byte;
};

void nmlp_added_tokens_init(nmlp_added_tokens *set) { *set = (nmlp_added_tokens){0}; }

void nmlp_added_tokens_fini(nmlp_added_tokens *set) {
    nmlp_arena_fini(&set->arena);
    *set = (nmlp_added_tokens){0};
}

static nmlp_trie_node *find_byte(nmlp_trie_node *siblings, unsigned char byte) {
    while (siblings && siblings->byte != byte) siblings = siblings->sibling;
    return siblings;
}

nmlp_status nmlp_added_tokens_put(nmlp_added_tokens *set, const char *text, size_t len, const nmlp_added_token *token,
                                  nmlp_err *err) {
    nmlp_trie_node **siblings = &set->first[(unsigned char)text[0]];
    nmlp_trie_node *node = NULL;
    for (size_t i = 0; i < len; i++) {
        node = find_byte(*siblings, (unsigned char)text[i]);
        if (!node) {
            node = nmlp_arena_new(&set->arena, 1, sizeof *node, err);
            if (!node) return NMLP_E_NOMEM;
            node->byte = (unsigned char)text[i];
            node->sibling = *siblings;
            *siblings = node;
        }
        siblings = &node->child;
    }
    node->token = *token;
    node->is_end = true;
    set->n_tokens++;
    return NMLP_OK;
}

/* The longest token that starts at text[0]; 0 bytes for none. */
static size_t longest_at(const nmlp_added_tokens *set, const char *text, size_t len, const nmlp_added_token **token) {
    size_t n_found = 0;
    nmlp_trie_node *node = set->first[(unsigned char)text[0]];
    for (size_t i = 1; node; i++) {
        if (node->is_end) {
            n_found = i;
            *token = &node->token;
        }
        node = i < len ? find_byte(node->child, (unsigned char)text[i]) : NULL;
    }
    return n_found;
}

static bool stands_alone(const char *text, size_t len, size_t begin, size_t end) {
    uint32_t c;
    if (begin > 0) {
        nmlp_utf8_last(text, begin, &c);
        if (nmlp_unicode_is_word(c)) return false;
    }
    return end == len || nmlp_utf8_decode(text + end, len - end, &c) <= 0 || !nmlp_unicode_is_word(c);
}

static size_t strip_left(const char *text, size_t from, size_t begin) {
    while (begin > from) {
        uint32_t c;
        size_t n = nmlp_utf8_last(text, begin, &c);
        if (!nmlp_unicode_is_space(c) || n > begin - from) break;
        begin -= n;
    }
    return begin;
}

static size_t strip_right(const char *text, size_t len, size_t end) {
    while (end < len) {
        uint32_t c;
        int n = nmlp_utf8_decode(text + end, len - end, &c);
        if (n <= 0 || !nmlp_unicode_is_space(c)) break;
        end += (size_t)n;
    }
    return end;
}

bool nmlp_added_tokens_find(const nmlp_added_tokens *set, const char *text, size_t len, size_t from, bool parse_special,
                            nmlp_added_match *match) {
    if (!set->n_tokens) return false;
    for (size_t at = from; at < len; at++) {
        if (!set->first[(unsigned char)text[at]]) continue;
        const nmlp_added_token *token = NULL;
        size_t n = longest_at(set, text + at, len - at, &token);
        if (!n) continue;
        /* A token that is passed over still covers its bytes: no other token is looked for inside. */
        if ((token->special && !parse_special) || (token->single_word && !stands_alone(text, len, at, at + n))) {
            at += n - 1;
            continue;
        }
        *match = (nmlp_added_match){.begin = token->lstrip ? strip_left(text, from, at) : at,
                                    .end = token->rstrip ? strip_right(text, len, at + n) : at + n,
                                    .token_begin = at,
                                    .token_end = at + n,
                                    .id = token->id};
        return true;
    }
    return false;
}
