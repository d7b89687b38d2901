#include "zerograd/runtime/text/utf8.h"

using namespace zg;

TEST_CASE("valid_utf8 counts the leading bytes that are valid by RFC 3629") {
  CHECK(valid_utf8("") == 0);
  CHECK(valid_utf8("0123456789 ascii") == 16);
  CHECK(valid_utf8("01234567\xff") == 8);
  CHECK(valid_utf8("\u0439\u4e2d\U0001f600") == 9);
  for (const char* invalid :
       {"\x80", "\xc1\x81", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xe4\xb8", "\xf0\x9f\x98"})
    CHECK(valid_utf8(std::string("a") + invalid) == 1);
}

TEST_CASE("invalid UTF-8 is shown as one U+FFFD for each invalid byte or incomplete character") {
  const std::string shown = "\uFFFD";
  CHECK(readable_utf8("a\u00e9z") == "a\u00e9z");
  CHECK(readable_utf8("\xf0\x9f\x98|") == shown + "|");  // one that is cut short
  CHECK(readable_utf8("\xe4\xb8\xe4\xb8\xad") == shown + "\u4e2d");
  CHECK(readable_utf8("\xed\xa0\x80") == shown + shown + shown);  // a surrogate
  CHECK(readable_utf8("\xc3\x28\xff") == shown + "(" + shown);
}

TEST_CASE("unfinished_utf8 counts the bytes of an incomplete character at the end of a text") {
  const std::string smile = "\U0001f600";
  for (size_t length = 1; length < 4; ++length)
    CHECK(unfinished_utf8("ab" + smile.substr(0, length)) == length);
  CHECK(unfinished_utf8("ab" + smile) == 0);
  CHECK(unfinished_utf8("ab") == 0);
  CHECK(unfinished_utf8("\x80\x80\x80") == 0);  // continuation bytes without a start
  CHECK(unfinished_utf8("\xed\xa0") == 0);      // never a character
  CHECK(unfinished_utf8("") == 0);
}
