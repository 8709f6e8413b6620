// Streams and events of the far device. A stream is a queue with a thread of its own: what is enqueued runs in order,
// later; in late mode (far_device.h) after a wait drawn from a seed. Counts what orders streams, and tells the recorder
// (far_recorder.h) of it.
//
// What the host knows to have ended orders what it enqueues from then on: after it has waited for an event or a
// stream, for all threads; after it has merely asked (a query), for the thread that asked.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/far_device.h"
#include "tests/support/far_stream_handle.h"

namespace tessera::test {

// `near_of`: for native handles (far_stream_handle.h). The default stream is number 0; threads' current streams begin
// with it.
void set_near_of(void* (*near_of)(const void* far_address));
c10::StreamId new_far_stream();
c10::StreamId current_far_stream();
c10::StreamId exchange_far_stream(c10::StreamId stream);
FarStreamHandle* far_stream_handle(c10::StreamId stream);

// An operation that throws is an error of the next call here that may throw, and of every one after it.
void enqueue_far(c10::StreamId stream, const std::string& name, const std::vector<FarAccess>& accesses,
                 std::function<void()> work);

// Runs `work` now, on the calling thread, after what is on the stream. `waits`: the host waits for it on a GPU too,
// which counts and orders; else it only looks as if it was enqueued.
void run_far(c10::StreamId stream, const std::string& name, const std::vector<FarAccess>& accesses,
             const std::function<void()>& work, bool waits);

// What a library that frees memory does: enqueued, but later operations of the stream learn nothing of what this thread
// has asked.
void enqueue_far_poison(c10::StreamId stream, const void* begin, size_t bytes, std::function<void()> work);

// Until what is queued has run; a wait of the host's.
void drain_far_stream(c10::StreamId stream);
void drain_far_streams();
void settle_far_streams();  // all of them; not counted, and orders nothing
bool is_far_stream_idle(c10::StreamId stream);

// As DeviceGuardImplInterface has them; null: never recorded.
void record_far_event(void** event, c10::StreamId stream);
void block_on_far_event(void* event, c10::StreamId stream);
bool has_far_event_passed(void* event);
void await_far_event(void* event);
void destroy_far_event(void* event) noexcept;

// A mark of the library's own on a stream, neither counted nor dropped.
class FarMark;
std::shared_ptr<FarMark> mark_far_stream(c10::StreamId stream);
bool has_passed(const std::shared_ptr<FarMark>& mark);

// Memory that is the recorder's no more.
void forget_far_accesses(const void* begin, size_t bytes);

// In a child, whose parent's streams were settled: their threads are not here.
void leave_parents_streams();

void set_far_streams_mode(const FarMode& mode);
bool is_far_late();
FarFacts far_stream_facts();

}  // namespace tessera::test
