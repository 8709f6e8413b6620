// Streams and events of the far device. A stream is a queue: what a library enqueues (nccl_stand_in.cpp) runs in order
// on a thread of the stream's, later. Operators are not queued: each runs at once, after what is queued on the current
// stream. So an operator before an event that a stream should have waited for sees memory as it was.
#pragma once

#include <c10/core/Stream.h>

#include "tests/support/far_stream_handle.h"

namespace tessera::test {

// `near_of`: for native handles (far_stream_handle.h). The default stream is number 0; threads' current streams begin
// with it.
void set_near_of(void* (*near_of)(const void* far_address));
c10::StreamId new_far_stream();
c10::StreamId current_far_stream();
c10::StreamId exchange_far_stream(c10::StreamId stream);
FarStreamHandle* far_stream_handle(c10::StreamId stream);

// Until what is queued has run.
void drain_far_stream(c10::StreamId stream);
bool is_far_stream_idle(c10::StreamId stream);

// As DeviceGuardImplInterface has them; null: never recorded.
void record_far_event(void** event, c10::StreamId stream);
void block_on_far_event(void* event, c10::StreamId stream);
bool has_far_event_passed(void* event);
void await_far_event(void* event);
void destroy_far_event(void* event) noexcept;

}  // namespace tessera::test
