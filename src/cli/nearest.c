#include "cli/nearest.h"

#include <string.h>

enum { WORD_MAX = 32 };

static int least(int a, int b) { return a < b ? a : b; }

int nmlp_edit_distance(const char *a, const char *b, int limit) {
    size_t n_a = strlen(a), n_b = strlen(b);
    int rows[3][WORD_MAX + 1]; /* of the last three prefixes of a: distances to every prefix of b */
    if (n_a > WORD_MAX || n_b > WORD_MAX) return limit + 1;
    for (size_t j = 0; j <= n_b; j++) rows[0][j] = (int)j;
    for (size_t i = 1; i <= n_a; i++) {
        int *now = rows[i % 3], *before = rows[(i - 1) % 3], *twice = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            now[j] = least(least(before[j], now[j - 1]) + 1, before[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], twice[j - 2] + 1);
        }
    }
    return least(rows[n_a % 3][n_b], limit + 1);
}

nmlp_nearest nmlp_nearest_begin(const char *word) {
    int third = (int)strlen(word) / 3;
    return (nmlp_nearest){.word = word, .distance = (third > 1 ? third : 1) + 1};
}

void nmlp_nearest_try(nmlp_nearest *nearest, const char *candidate) {
    int distance = nmlp_edit_distance(nearest->word, candidate, nearest->distance);
    if (distance >= nearest->distance) return;
    nearest->distance = distance;
    nearest->best = candidate;
}
