# Writes ${chat_program}: data/render_chats.py as a text in C++, for the library and the fuzzers.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/data/render_chats.py)
file(READ ${CMAKE_CURRENT_LIST_DIR}/data/render_chats.py program)
set(chat_program ${CMAKE_CURRENT_BINARY_DIR}/chat_program.cpp)
file(CONFIGURE OUTPUT ${chat_program} @ONLY CONTENT "namespace zg::models {
extern const char* const chat_program;
const char* const chat_program = R\"python(@program@)python\";
}  // namespace zg::models
")
