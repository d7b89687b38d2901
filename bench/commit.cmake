# Writes OUT, the source of bench::commit, from the repository of SOURCE.
execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${OUT} CONTENT "namespace zg::bench {
extern const char* const commit;
const char* const commit = \"${commit}\";
}  // namespace zg::bench
")
