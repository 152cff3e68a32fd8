// Makes the steps of a model slow, and has them fail once a file is there: the program under test is linked with
// --wrap, which sends calls of Runner::commit here.
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <stdexcept>

namespace mdi {
class Runner;
}

extern "C" {
void __real__ZN3mdi6Runner6commitESt4spanIKiLm18446744073709551615EE(mdi::Runner* runner,
                                                                     std::span<const int> accepted);

void __wrap__ZN3mdi6Runner6commitESt4spanIKiLm18446744073709551615EE(mdi::Runner* runner,
                                                                     std::span<const int> accepted) {
  const char* file = std::getenv("MDI_TEST_FAILURE");
  if (file != nullptr && access(file, F_OK) == 0) throw std::runtime_error("the device was lost");
  if (file != nullptr) usleep(200'000);
  __real__ZN3mdi6Runner6commitESt4spanIKiLm18446744073709551615EE(runner, accepted);
}
}
