/* Operators and nets in f32: what training uses. */
#include "train/exec_body.h"
#include "train/net_body.h"
