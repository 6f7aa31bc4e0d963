/* The learning rate of a step: linear warm-up, then half a cosine down to a fraction of the peak. */
#ifndef NMLP_TRAIN_SCHEDULE_H
#define NMLP_TRAIN_SCHEDULE_H

#include <stdint.h>

typedef struct nmlp_train_schedule {
    double peak;
    double floor;   /* fraction of the peak at the last step */
    int64_t warmup; /* steps; step `warmup` is the first at the peak */
    int64_t steps;
} nmlp_train_schedule;

/* step from 0 to steps-1 */
double nmlp_train_schedule_rate(const nmlp_train_schedule *schedule, int64_t step);

#endif
