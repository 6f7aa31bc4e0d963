/* Training operators in f32. */
#include "train/exec_body.h"
