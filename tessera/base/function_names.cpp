#include "tessera/base/function_names.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tessera/base/unique_fd.h"

namespace tessera {
namespace {

// A file's bytes; empty where it cannot be read.
class Mapped {
 public:
  explicit Mapped(const std::string& path) {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!file.open() || fstat(file.get(), &status) != 0 || status.st_size <= 0) return;
    void* const data = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (data == MAP_FAILED) return;
    data_ = static_cast<const char*>(data);
    bytes_ = static_cast<size_t>(status.st_size);
  }
  ~Mapped() {
    if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  // Null where the file ends before.
  template <class T>
  const T* array(uint64_t offset, uint64_t count) const {
    if (offset > bytes_ || count > (bytes_ - offset) / sizeof(T) || offset % alignof(T) != 0) return nullptr;
    return reinterpret_cast<const T*>(data_ + offset);
  }

  std::string text(uint64_t offset) const {
    if (offset >= bytes_) return "";
    return std::string(data_ + offset, strnlen(data_ + offset, bytes_ - offset));
  }

 private:
  const char* data_ = nullptr;
  size_t bytes_ = 0;
};

// The mangled name of the function at `offset` from where the file was loaded; empty: the file does not tell.
std::string name_in_symbol_table(const std::string& path, uint64_t offset) {
  const Mapped file(path);
  const auto* const header = file.array<ElfW(Ehdr)>(0, 1);
  if (header == nullptr || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return "";
  const auto* const sections = file.array<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  for (size_t i = 0; sections != nullptr && i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum) continue;
    const uint64_t count = sections[i].sh_size / sizeof(ElfW(Sym));
    const auto* const symbols = file.array<ElfW(Sym)>(sections[i].sh_offset, count);
    for (uint64_t s = 0; symbols != nullptr && s < count; ++s) {
      const ElfW(Sym)& symbol = symbols[s];
      if ((symbol.st_info & 0xf) != STT_FUNC || offset < symbol.st_value) continue;
      if (offset - symbol.st_value >= symbol.st_size) continue;
      return file.text(sections[sections[i].sh_link].sh_offset + symbol.st_name);
    }
  }
  return "";
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return text ? text.get() : name;
}

bool is_of_main_program(const Dl_info& info) {
  Dl_info own{};
  return dladdr(reinterpret_cast<const void*>(getauxval(AT_PHDR)), &own) != 0 && own.dli_fbase == info.dli_fbase;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::string short_function_name(const std::string& demangled) {
  constexpr std::string_view kOperator = "operator";
  std::string name;
  int depth = 0;
  for (size_t i = 0; i < demangled.size(); ++i) {
    if (depth == 0 && demangled.compare(i, kOperator.size(), kOperator) == 0) {  // its name may have brackets
      name += kOperator;
      i += kOperator.size();
      for (int taken = 0; i < demangled.size() && taken < 2 && std::strchr("()<>[]=-", demangled[i]) != nullptr;
           ++i, ++taken) {
        if (demangled[i] == '(' && demangled.compare(i, 2, "()") != 0) break;
        name += demangled[i];
      }
      --i;
      continue;
    }
    const char each = demangled[i];
    if (each == '<' || each == '(') ++depth;
    if (depth == 0) name += each;
    if ((each == '>' || each == ')') && depth > 0) --depth;
  }
  for (const std::string_view extra : {" const", "[abi:cxx11]"}) {
    for (size_t at = name.find(extra); at != std::string::npos; at = name.find(extra)) name.erase(at, extra.size());
  }
  name = name.substr(0, name.find(" [clone "));
  const size_t blank = name.rfind(' ');  // before it stands what a template's instance returns
  return blank == std::string::npos || name.find("operator ") != std::string::npos ? name : name.substr(blank + 1);
}

std::string function_name(const void* address) {
  Dl_info info{};
  void* entry = nullptr;
  if (dladdr1(address, &info, &entry, RTLD_DL_SYMENT) == 0) return fmt::format("{}", address);
  const auto* const symbol = static_cast<const ElfW(Sym)*>(entry);
  const bool is_main = is_of_main_program(info);
  const std::string path = is_main ? "/proc/self/exe" : info.dli_fname;
  const auto base = reinterpret_cast<uint64_t>(info.dli_fbase), at = reinterpret_cast<uint64_t>(address);
  const std::string object = last_part(is_main ? program_invocation_short_name : info.dli_fname);
  std::string name;
  if (symbol != nullptr && at - reinterpret_cast<uint64_t>(info.dli_saddr) < symbol->st_size) {
    name = info.dli_sname;
  } else {
    const bool is_fixed = is_main && base == 0x400000;  // not position independent: symbols have whole addresses
    name = name_in_symbol_table(path, is_fixed ? at : at - base);
  }
  if (name.empty()) return fmt::format("{:#x} in {}", at - base, object);
  return fmt::format("{} ({})", short_function_name(demangled(name.c_str())), object);
}

}  // namespace tessera
