#include "tessera/launch/missing_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace tessera::launch {
namespace {

struct Source {
  std::string_view begins;  // the name of what is missing
  const char* brings;       // what brings it
};

constexpr Source kLibraries[] = {
    {"libcudart", "CUDA: 'module load cuda', or the CUDA packages of the environment that the program was built with"},
    {"libcublas", "CUDA: 'module load cuda', or the CUDA packages of the environment that the program was built with"},
    {"libcudnn", "cuDNN: 'module load cudnn', or the package nvidia-cudnn of the version that PyTorch asks for"},
    {"libcuda.so", "the driver of the graphics card: this host has none, or a container was started without it"},
    {"libnccl", "NCCL: 'module load nccl', or the package nvidia-nccl of the version that PyTorch asks for"},
    {"libmpi.so.12", "MPICH: 'module load mpich', the one that the program was built with"},
    {"libmpich", "MPICH: 'module load mpich', the one that the program was built with"},
    {"libmpi", "OpenMPI: 'module load openmpi', the one that the program was built with"},
    {"libpmi", "PMI: Slurm's own libraries, or those of the MPI module"},
    {"libtorch",
     "LibTorch: the environment that the program was built with, active on each host; or an archive of "
     "scripts/bundle"},
    {"libc10",
     "LibTorch: the environment that the program was built with, active on each host; or an archive of "
     "scripts/bundle"},
    {"libtessera", "Tessera: install it on each host, at the same path"},
    {"libstdc++",
     "a C++ compiler's libraries: 'module load gcc', of the version that the program was built with or newer"},
    {"libgomp", "a C compiler's libraries: 'module load gcc', or the package libgomp1"},
    {"libgfortran", "a Fortran compiler's libraries: 'module load gcc', or the package libgfortran5"},
    {"libibverbs", "RDMA: the package rdma-core or libibverbs1"},
    {"libpython", "Python: 'module load python', or the environment that the program was built with"},
};

constexpr Source kVersions[] = {
    {"GLIBCXX",
     "libstdc++ is older than the program: 'module load gcc', of the version that it was built with or newer, "
     "and see that LD_LIBRARY_PATH names no older one first"},
    {"CXXABI",
     "libstdc++ is older than the program: 'module load gcc', of the version that it was built with or newer, "
     "and see that LD_LIBRARY_PATH names no older one first"},
    {"GLIBC_",
     "this host's C library is older than the one that the program was built for: build on the oldest of the "
     "hosts, or carry an archive of scripts/bundle that was made there"},
};

// Where a module's package has another name.
struct Package {
  std::string_view module;
  std::string_view package;
};

constexpr Package kPackages[] = {
    {"PIL", "pillow"},  {"cv2", "opencv-python"}, {"sklearn", "scikit-learn"},
    {"yaml", "pyyaml"}, {"google", "protobuf"},   {"deepspeed", "tessera, or deepspeed"},
};

// Between two marks; empty: they are not there.
std::string between(std::string_view line, std::string_view before, std::string_view after) {
  const size_t begin = line.find(before);
  if (begin == std::string_view::npos) return "";
  const size_t from = begin + before.size();
  const size_t end = line.find(after, from);
  return end == std::string_view::npos ? "" : std::string(line.substr(from, end - from));
}

template <size_t kCount>
std::string brings(const Source (&sources)[kCount], std::string_view name, const std::string& otherwise) {
  for (const Source& source : sources) {
    if (name.starts_with(source.begins)) return source.brings;
  }
  return otherwise;
}

// "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory", and the loader's own.
std::optional<MissingPart> missing_library(const std::string& line) {
  constexpr std::string_view kMark = ": cannot open shared object file";
  const size_t end = line.find(kMark);
  if (end == std::string::npos) return std::nullopt;
  const size_t begin = line.find_last_of(": /'", end - 1);
  const std::string name = line.substr(begin == std::string::npos ? 0 : begin + 1, end - begin - 1);
  return MissingPart{fmt::format("it did not find the shared library {}", name),
                     fmt::format("what brings it has to be there on each host: {}",
                                 brings(kLibraries, name,
                                        "load its module, or add its folder to LD_LIBRARY_PATH; 'ldd' shows what a "
                                        "program does not find"))};
}

// "/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by tessera)"
std::optional<MissingPart> missing_version(const std::string& line) {
  const std::string version = between(line, "version `", "' not found");
  if (version.empty()) return std::nullopt;
  const size_t end = line.find(": version `");
  const size_t begin = line.find_last_of(" ", end);
  const std::string library = line.substr(begin + 1, end - begin - 1);
  return MissingPart{fmt::format("its library {} has no version {}", library, version),
                     brings(kVersions, version, "load the module of the library that the program was built with")};
}

// "ModuleNotFoundError: No module named 'transformers.models'"
std::optional<MissingPart> missing_module(const std::string& line) {
  std::string name = between(line, "No module named '", "'");
  if (name.empty() && line.ends_with("No module named " + line.substr(line.rfind(' ') + 1))) {  // python -m name
    name = line.substr(line.rfind(' ') + 1);
  }
  if (name.empty()) return std::nullopt;
  std::string package = name.substr(0, name.find('.'));
  for (const Package& each : kPackages) {
    if (each.module == package) package = each.package;
  }
  return MissingPart{
      fmt::format("its Python has no module '{}'", name),
      fmt::format("activate the environment that has it before the run, on each host, or install it there: "
                  "python3 -m pip install {}",
                  package)};
}

}  // namespace

std::optional<MissingPart> missing_part(const std::deque<std::string>& last_lines) {
  constexpr size_t kEnd = 5;  // lines; before, it was said of something that the program can do without
  const size_t looked_at = std::min(last_lines.size(), kEnd);
  for (auto line = last_lines.rbegin(); line != last_lines.rbegin() + static_cast<ptrdiff_t>(looked_at); ++line) {
    for (const auto find : {missing_library, missing_version, missing_module}) {
      if (auto part = find(*line)) return part;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::launch
