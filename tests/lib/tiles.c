#include "lib/tiles.h"

_Thread_local nmlp_test_tiles nmlp_test_tiles_of_thread;
