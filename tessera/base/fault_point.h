// Places where a test can kill the process, as if the power went: in a build with tests, TESSERA_FAULT="1:7" ends rank
// 1 with SIGKILL when it comes to its seventh such place, "*:7" every rank. Otherwise nothing happens.
#pragma once

namespace tessera {

void fault_point();

// Whether a test asks this rank for the fault of that name: TESSERA_FAULT="1:clock". What it does is said where it is
// asked for.
bool fault_asked(const char* name);

}  // namespace tessera
