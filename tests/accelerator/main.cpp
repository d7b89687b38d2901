#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

// Of the folders that test the CPU, too, only what is written for every device.
int main(int count, char** arguments) {
  doctest::Context context(count, arguments);
  context.addFilter("test-suite", "every device");
  return context.run();
}
