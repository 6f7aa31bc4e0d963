/* The last comparison of an optimization: which forms are clearly faster than others, and which one is written.
 * Times are ratios to the dense model's, one of each repeat. A repeat opens all models anew: where weights happen to
 * lie in memory changes their speed too, and belongs to the spread. */
#ifndef NMLP_SERVICE_FINALISTS_H
#define NMLP_SERVICE_FINALISTS_H

#include <stdbool.h>

enum { NMLP_FINALISTS_MAX = 8, NMLP_FINAL_REPEATS = 7 };

typedef struct nmlp_finalist {
    int point;                        /* whose it is */
    double loss;                      /* nats */
    double ratio[NMLP_FINAL_REPEATS]; /* its time over the dense model's of the same repeat */
} nmlp_finalist;

typedef struct nmlp_finalists {
    nmlp_finalist list[NMLP_FINALISTS_MAX]; /* the dense model first */
    int n;
    int n_repeats;
    double least; /* a lead of less than this share is none */
} nmlp_finalists;

/* Median over the repeats. */
double nmlp_finalist_ratio(const nmlp_finalists *finalists, int which);
/* Least and largest of the repeats. */
void nmlp_finalist_range(const nmlp_finalists *finalists, int which, double *low, double *high);
/* `a` leads in the median of their quotients by the least share or more, and is behind in at most one of seven repeats:
 * two equal models seem so once in sixteen times. */
bool nmlp_finalist_leads(const nmlp_finalists *finalists, int a, int b);
/* Which one to write. The dense model where the fastest does not lead it; else, of those that lead the dense model and
 * that the fastest does not lead, the one that loses least. *fastest: the one with the least median. */
int nmlp_finalists_choose(const nmlp_finalists *finalists, int *fastest);

#endif
