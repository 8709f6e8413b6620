// Regular expressions of tokenizer.json files, over UTF-8, by ICU: \s and \S mean Unicode's White_Space, as they do in
// the `tokenizers` package.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::data {

class UnicodeRegex {
 public:
  // ErrorKind::kData where it is none; `path`: the file it stands in, for the message.
  UnicodeRegex(const std::string& pattern, const std::string& path);
  ~UnicodeRegex();
  UnicodeRegex(UnicodeRegex&&) noexcept;

  // Calls visit(begin, end), offsets in bytes, of each match that is not empty, in order. Safe from any thread.
  // ErrorKind::kData for a text on which it takes too long.
  using Visitor = std::function<void(size_t begin, size_t end)>;
  void for_each_match(std::string_view text, const Visitor& visit) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace tessera::data
