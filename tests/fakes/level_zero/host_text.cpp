#include "tests/fakes/level_zero/host_text.h"

#include <map>
#include <stdexcept>

namespace zg::test_driver {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

void erase_all(std::string& line, std::string_view word) {
  for (size_t at = 0; (at = line.find(word, at)) != std::string::npos;) line.erase(at, word.size());
}

void replace_all(std::string& line, std::string_view word, std::string_view by) {
  for (size_t at = 0; (at = line.find(word, at)) != std::string::npos; at += by.size())
    line.replace(at, word.size(), by);
}

/// Removes each " word(...)", up to the matching parenthesis.
void erase_calls(std::string& line, std::string_view word) {
  for (size_t at = 0; (at = line.find(word, at)) != std::string::npos;) {
    size_t end = at + word.size();
    for (int depth = 1; depth && end < line.size(); ++end)
      depth += (line[end] == '(') - (line[end] == ')');
    line.erase(at, end - at);
  }
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

/// The name after the first @ from position `from` on.
std::string_view name_in(std::string_view line, size_t from = 0) {
  const size_t at = line.find('@', from);
  if (at == std::string_view::npos) return {};
  size_t end = at + 1;
  while (end < line.size() && is_name(line[end])) ++end;
  return line.substr(at + 1, end - at - 1);
}

std::string host_line(std::string_view from) {
  std::string line(from);
  erase_calls(line, " addrspace(");
  for (const char* word : {"spir_kernel ", "spir_func ", "dso_local ", " zeroext", " signext",
                           "readnone", "local_unnamed_addr "})
    erase_all(line, word);
  replace_all(line, "addrspacecast", "bitcast");
#ifdef __SANITIZE_ADDRESS__
  if (line.starts_with("attributes #")) replace_all(line, "{ ", "{ sanitize_address ");
#endif
  return line;
}

/// The types of a kernel's parameters, from the line that defines it.
struct Parameter {
  std::string type;
  bool by_value = false;  ///< passed as a pointer to a struct of which the kernel gets a copy
};
std::vector<Parameter> parameters_of(std::string_view line) {
  std::vector<Parameter> parameters;
  size_t at = line.find('(', line.find('@')) + 1;
  int depth = 0;
  for (std::string text; at < line.size(); ++at) {
    const char c = line[at];
    if (!depth && (c == ',' || c == ')')) {
      text.erase(0, text.find_first_not_of(' '));
      if (!text.empty()) {  // the type ends at the first space outside of brackets
        size_t end = 0;
        for (int inside = 0; end < text.size() && (inside || text[end] != ' '); ++end)
          inside += (std::string_view("<[{(").find(text[end]) != std::string_view::npos) -
                    (std::string_view(">]})").find(text[end]) != std::string_view::npos);
        parameters.push_back({text.substr(0, end), text.find(" byval(") != std::string::npos});
        text.clear();
      }
      if (c == ')') break;
      continue;
    }
    depth += (c == '(' || c == '<' || c == '[' || c == '{');
    depth -= (c == ')' || c == '>' || c == ']' || c == '}');
    text += c;
  }
  return parameters;
}

/// Appends instructions that load the arguments %v0, %v1, ... from void** %a. Returns the argument
/// list of the call of the kernel.
std::string load_arguments(const std::vector<Parameter>& parameters, std::string& text) {
  std::string call;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    const std::string n = std::to_string(i);
    std::string type = p.type;
    if (p.by_value) type.pop_back();
    text += "  %p" + n + " = getelementptr i8*, i8** %a, i64 " + n + "\n  %q" + n +
            " = load i8*, i8** %p" + n + "\n  %r" + n + " = bitcast i8* %q" + n + " to " + type +
            "*\n  %v" + n + " = load " + type + ", " + type + "* %r" + n + ", align 1\n";
    call += i ? ", " : "";
    if (p.by_value) {
      text += "  %c" + n + " = alloca " + type + ", align 16\n";
      call += p.type + " %c" + n;
    } else {
      call += type + " %v" + n;
    }
  }
  return call;
}

/// Instructions that copy the structs that are passed by value, for each work-item again.
std::string copy_structs(const std::vector<Parameter>& parameters) {
  std::string text;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].by_value) continue;
    const std::string n = std::to_string(i), type = parameters[i].type;
    text += "  store " + type.substr(0, type.size() - 1) + " %v" + n + ", " + type + " %c" + n +
            ", align 16\n";
  }
  return text;
}

std::string entry_points(const std::string& kernel, const std::vector<Parameter>& parameters) {
  std::string text = "define void @zg_item_" + kernel + "(i8** %a) {\n";
  std::string call = load_arguments(parameters, text);
  text += copy_structs(parameters) + "  call void @" + kernel + "(" + call + ")\n  ret void\n}\n";
  text += "define void @zg_row_" + kernel + "(i8** %a) {\nentry:\n";
  load_arguments(parameters, text);
  // local_id[0] and local_size[0] of struct zg_item.
  text +=
      "  %item = load i32*, i32** @zg_item\n"
      "  %place = getelementptr i32, i32* %item, i64 9\n"
      "  %items = load i32, i32* %place\n"
      "  br label %loop\n"
      "loop:\n"
      "  %i = phi i32 [ 0, %entry ], [ %next, %loop ]\n"
      "  store i32 %i, i32* %item\n" +
      copy_structs(parameters) + "  call void @" + kernel + "(" + call +
      ")\n"
      "  %next = add nuw i32 %i, 1\n"
      "  %more = icmp ult i32 %next, %items\n"
      "  br i1 %more, label %loop, label %done\n"
      "done:\n"
      "  ret void\n}\n";
  return text;
}

/// A local array: its name and its LLVM type.
struct LocalArray {
  std::string name, type;
};

std::string poison(const std::string& kernel, const std::vector<LocalArray>& arrays) {
  std::string text = "define void @zg_poison_" + kernel + "() {\n";
  for (const LocalArray& array : arrays) {
    if (!array.name.starts_with(kernel + ".")) continue;
    const std::string& type = array.type;
    text += "  call void @zg_poison(i8* bitcast (" + type + "* @" + array.name +
            " to i8*), i64 ptrtoint (" + type + "* getelementptr (" + type + ", " + type +
            "* null, i32 1) to i64))\n";
  }
  return text + "  ret void\n}\n";
}

using Calls = std::map<std::string, std::set<std::string>, std::less<>>;

bool may_meet(const std::string& function, const Calls& calls, std::set<std::string>& seen) {
  if (!seen.insert(function).second) return false;
  if (function.find("barrier") != std::string::npos && function.starts_with("_Z")) return true;
  if (function.find("sub_group") != std::string::npos && function.starts_with("_Z")) return true;
  const auto found = calls.find(function);
  if (found == calls.end()) return false;
  for (const std::string& called : found->second) {
    if (may_meet(called, calls, seen)) return true;
  }
  return false;
}

}  // namespace

std::string host_text(std::string_view device_text) {
  std::string text;
  text.reserve(device_text.size());
  for (const std::string_view line : lines_of(device_text)) {
    if (line.starts_with("target ") || line.starts_with("source_filename")) continue;
    text += host_line(line) + "\n";
  }
  return text;
}

std::string host_text_of_kernels(std::string_view device_text,
                                 const std::vector<KernelSignature>& kernels) {
  std::string text, function;
  std::vector<LocalArray> arrays;
  std::map<std::string, std::vector<Parameter>> parameters;
  Calls calls;
  for (const std::string_view from : lines_of(device_text)) {
    if (from.starts_with("target ") || from.starts_with("source_filename")) continue;
    std::string line = host_line(from);
    if (from.starts_with("@") && from.find("addrspace(3) global ") != std::string_view::npos) {
      // The driver's functions change these variables, so the compiler must not assume their
      // values.
      const size_t type = line.find("global ") + 7, end = line.rfind(" undef");
      if (end == std::string::npos) throw std::runtime_error("local memory with a value: " + line);
      arrays.push_back({std::string(name_in(line)), line.substr(type, end - type)});
      line = "@" + arrays.back().name + " = hidden global " + arrays.back().type +
             " zeroinitializer" + line.substr(end + 6);
    }
    if (line.starts_with("define ")) {
      function = name_in(line);
      if (from.find("spir_kernel ") != std::string_view::npos) {
        parameters[function] = parameters_of(line);
        line.insert(7, "internal ");  // a kernel may be called as a function of the C library
      }
    } else if (!function.empty()) {
      for (size_t at = line.find('@'); at != std::string::npos; at = line.find('@', at + 1))
        calls[function].insert(std::string(name_in(line, at)));
    }
    erase_calls(line, " byval(");
    text += line + "\n";
  }
  text += "@zg_item = external global i32*\ndeclare void @zg_poison(i8*, i64)\n";
  for (const KernelSignature& kernel : kernels) {
    const auto found = parameters.find(kernel.name);
    if (found == parameters.end() || found->second.size() != kernel.arguments.size())
      throw std::runtime_error("kernel " + kernel.name + ": LLVM's text has other parameters");
    std::set<std::string> seen;
    text += entry_points(kernel.name, found->second) + poison(kernel.name, arrays) + "@zg_meets_" +
            kernel.name + " = constant i8 " + (may_meet(kernel.name, calls, seen) ? "1" : "0") +
            "\n";
  }
  return text;
}

std::string with_reciprocals(std::string_view text) {
  std::string changed;
  for (const std::string_view line : lines_of(text)) {
    const size_t divide = line.find(" = fdiv float "), comma = line.find(", ", divide);
    if (divide == line.npos || comma == line.npos) {
      changed += std::string(line) + "\n";
      continue;
    }
    const std::string name(line.substr(0, divide));  // "  %5"
    const std::string reciprocal = "%reciprocal." + name.substr(name.find('%') + 1);
    const std::string_view a = line.substr(divide + 14, comma - divide - 14);
    std::string_view b = line.substr(comma + 2);
    b = b.substr(0, b.find(','));
    changed += "  " + reciprocal + " = fdiv float 1.0, " + std::string(b) + "\n" + name +
               " = fmul float " + std::string(a) + ", " + reciprocal + "\n";
  }
  return changed;
}

Functions functions_of(std::string_view text) {
  Functions found;
  for (const std::string_view line : lines_of(text)) {
    if (line.starts_with("define ")) found.defined.insert(std::string(name_in(line)));
    if (line.starts_with("declare ")) found.declared.insert(std::string(name_in(line)));
  }
  return found;
}

}  // namespace zg::test_driver
