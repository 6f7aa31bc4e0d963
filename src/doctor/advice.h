/* What would make this machine faster, each line something one can do. */
#ifndef NMLP_DOCTOR_ADVICE_H
#define NMLP_DOCTOR_ADVICE_H

#include "doctor/survey.h"

enum { NMLP_ADVICE_MAX = 8, NMLP_ADVICE_BYTES = 320 };

typedef struct nmlp_advice {
    char lines[NMLP_ADVICE_MAX][NMLP_ADVICE_BYTES];
    int n;
} nmlp_advice;

/* A function of the survey and the build type ("Release", …) alone. */
void nmlp_advise(nmlp_advice *advice, const nmlp_survey *survey, const char *build_type);

#endif
