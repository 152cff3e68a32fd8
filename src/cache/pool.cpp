#include "cache/pool.h"

#include <cstdio>
#include <cstdlib>

namespace mdi {

void cache_fault(const char* what) {
  std::fprintf(stderr, "cache: %s\n", what);
  std::abort();
}

}  // namespace mdi
