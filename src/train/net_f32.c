/* Nets in f32: what training uses. */
#include "train/net_body.h"
