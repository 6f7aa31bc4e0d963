/* Where the time of a compression goes: every second belongs to one stage and to one kind of work. */
#ifndef NMLP_COMPRESS_TIMES_H
#define NMLP_COMPRESS_TIMES_H

typedef enum nmlp_compress_stage {
    NMLP_COMPRESS_STAGE_STATISTICS,
    NMLP_COMPRESS_STAGE_RANKS,
    NMLP_COMPRESS_STAGE_REFIT,
    NMLP_COMPRESS_STAGE_WRITE,
    NMLP_COMPRESS_STAGE_COUNT
} nmlp_compress_stage;

typedef enum nmlp_compress_work {
    NMLP_COMPRESS_WORK_FORWARD,  /* layers, MLPs and the head of the model on tokens */
    NMLP_COMPRESS_WORK_MOMENTS,  /* Gram matrices and sums over tokens */
    NMLP_COMPRESS_WORK_EIGEN,    /* symmetric eigenproblems */
    NMLP_COMPRESS_WORK_PRODUCTS, /* every other product of matrices, factors among them */
    NMLP_COMPRESS_WORK_PACKING,  /* factors on their way into kernels */
    NMLP_COMPRESS_WORK_COMPARE,  /* distributions over the vocabulary */
    NMLP_COMPRESS_WORK_FILES,
    NMLP_COMPRESS_WORK_OTHER,
    NMLP_COMPRESS_WORK_COUNT
} nmlp_compress_work;

const char *nmlp_compress_stage_name(nmlp_compress_stage stage);
const char *nmlp_compress_work_name(nmlp_compress_work work);

typedef struct nmlp_compress_times {
    double seconds[NMLP_COMPRESS_STAGE_COUNT][NMLP_COMPRESS_WORK_COUNT];
    nmlp_compress_stage stage; /* under way */
    nmlp_compress_work work;
    double since;
} nmlp_compress_times;

/* Everything from now on belongs to `stage`, and to other work until somebody says what it is. */
void nmlp_compress_times_stage(nmlp_compress_times *times, nmlp_compress_stage stage);
/* From now on it is `work`; returns what it was, for going back. `times` may be NULL. */
nmlp_compress_work nmlp_compress_times_enter(nmlp_compress_times *times, nmlp_compress_work work);

double nmlp_compress_times_of_stage(const nmlp_compress_times *times, nmlp_compress_stage stage);
double nmlp_compress_times_of_work(const nmlp_compress_times *times, nmlp_compress_work work);
double nmlp_compress_times_outside_forward(const nmlp_compress_times *times);

#endif
