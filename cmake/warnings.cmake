add_library(nmlp_warnings INTERFACE)
target_compile_options(nmlp_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Wpointer-arith -Wwrite-strings)
if(NMLP_WERROR)
  target_compile_options(nmlp_warnings INTERFACE -Werror)
endif()
if(NMLP_SANITIZE)
  target_compile_options(nmlp_warnings INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g -DNMLP_SANITIZED)
  target_link_options(nmlp_warnings INTERFACE -fsanitize=address,undefined)
endif()
if(NMLP_FUZZ) # goes with NMLP_SANITIZE
  target_compile_options(nmlp_warnings INTERFACE -fsanitize=fuzzer-no-link)
endif()
