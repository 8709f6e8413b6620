#include "tessera/engine/nvme_activations.h"

#include <ATen/core/Tensor.h>

#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::engine {

NvmeActivations::NvmeActivations(const std::string& folder, const storage::IoOptions& io)
    : file_(folder, "activation_checkpointing.nvme_path"), queue_(io) {}

void NvmeActivations::give_back_buffer(Entry& entry) noexcept {
  if (entry.buffer.capacity() > 0) buffers_.give_back(std::move(entry.buffer));
}

void NvmeActivations::erase(Entries::iterator entry) noexcept {
  if (entry->second.state == State::kRead) --reading_;
  give_back_buffer(entry->second);
  entries_.erase(entry);
  if (entries_.empty()) end_ = 0;
}

void NvmeActivations::wait_one() {
  const auto entry = entries_.find(queue_.wait_one());
  TESSERA_INVARIANT(entry != entries_.end());
  if (entry->second.state == State::kWriting) {
    entry->second.state = State::kInFile;
    give_back_buffer(entry->second);
  } else {
    entry->second.state = State::kRead;
  }
  if (entry->second.forgotten) erase(entry);
}

size_t NvmeActivations::write(const at::Tensor& tensor) {
  while (queue_.in_flight() >= kMostWriting) wait_one();
  const size_t number = next_number_++, bytes = storage::whole_pages(tensor.nbytes());
  storage::AlignedBuffer buffer = buffers_.take(bytes);
  std::memcpy(buffer.data(), tensor.const_data_ptr(), tensor.nbytes());
  std::memset(buffer.data() + tensor.nbytes(), 0, bytes - tensor.nbytes());
  queue_.start_write(file_.file(), buffer.data(), bytes, end_, number);
  entries_[number] = {.offset = end_, .bytes = tensor.nbytes(), .buffer = std::move(buffer)};
  end_ += bytes;
  return number;
}

void NvmeActivations::start_reading(Entries::iterator entry) {
  auto& [number, wanted] = *entry;
  const size_t bytes = storage::whole_pages(wanted.bytes);
  wanted.buffer = buffers_.take(bytes);
  queue_.start_read(file_.file(), wanted.buffer.data(), bytes, wanted.offset, number);
  wanted.state = State::kReading;
  ++reading_;
}

void NvmeActivations::read_ahead(Entries::iterator of) {
  while (of != entries_.begin() && reading_ < kMostReading) {
    --of;
    if (of->second.state == State::kInFile) start_reading(of);
  }
}

void NvmeActivations::read(size_t number, const at::Tensor& into) {
  const auto entry = entries_.find(number);
  TESSERA_INVARIANT(entry != entries_.end() && into.nbytes() == entry->second.bytes);
  Entry& wanted = entry->second;
  if (wanted.state == State::kInFile) start_reading(entry);
  read_ahead(entry);
  while (wanted.state == State::kReading) wait_one();
  std::memcpy(into.mutable_data_ptr(), wanted.buffer.data(), wanted.bytes);
  if (wanted.state != State::kRead) return;  // it is still being written
  wanted.state = State::kInFile;
  --reading_;
  give_back_buffer(wanted);
}

void NvmeActivations::forget(size_t number) noexcept {
  const auto entry = entries_.find(number);
  if (entry == entries_.end()) return;
  entry->second.forgotten = true;
  const State state = entry->second.state;
  if (state == State::kInFile || state == State::kRead) erase(entry);
}

}  // namespace tessera::engine
