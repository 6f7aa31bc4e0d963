/* Where the time of a compression goes: every second belongs to one stage and to one kind of work. */
#ifndef NMLP_COMPRESS_TIMES_H
#define NMLP_COMPRESS_TIMES_H

typedef enum nmlp_stage {
    NMLP_STAGE_STATISTICS,
    NMLP_STAGE_RANKS,
    NMLP_STAGE_REFIT,
    NMLP_STAGE_WRITE,
    NMLP_STAGE_COUNT
} nmlp_stage;

typedef enum nmlp_work {
    NMLP_WORK_FORWARD,  /* layers, MLPs and the head of the model on tokens */
    NMLP_WORK_MOMENTS,  /* Gram matrices and sums over tokens */
    NMLP_WORK_EIGEN,    /* symmetric eigenproblems */
    NMLP_WORK_PRODUCTS, /* every other product of matrices, factors among them */
    NMLP_WORK_PACKING,  /* factors on their way into kernels */
    NMLP_WORK_COMPARE,  /* distributions over the vocabulary */
    NMLP_WORK_FILES,
    NMLP_WORK_OTHER,
    NMLP_WORK_COUNT
} nmlp_work;

const char *nmlp_stage_name(nmlp_stage stage);
const char *nmlp_work_name(nmlp_work work);

typedef struct nmlp_times {
    double seconds[NMLP_STAGE_COUNT][NMLP_WORK_COUNT];
    nmlp_stage stage; /* under way */
    nmlp_work work;
    double since;
} nmlp_times;

/* Everything from now on belongs to `stage`, and to other work until somebody says what it is. */
void nmlp_times_stage(nmlp_times *times, nmlp_stage stage);
/* From now on it is `work`; returns what it was, for going back. `times` may be NULL. */
nmlp_work nmlp_times_enter(nmlp_times *times, nmlp_work work);

double nmlp_times_of_stage(const nmlp_times *times, nmlp_stage stage);
double nmlp_times_of_work(const nmlp_times *times, nmlp_work work);
double nmlp_times_outside_forward(const nmlp_times *times);

#endif
