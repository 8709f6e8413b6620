// The functions that addresses of code lie in, for people: "tessera::comm::Group::wait (tessera)".
//
// From the dynamic symbols, and where those do not tell, from the symbol table of the file that the code was loaded
// from: a program's own functions are in that alone, unless it was stripped. Allocates; not for signal handlers. Any
// thread.
#pragma once

#include <string>

namespace tessera {

// Without parameters and template arguments; "0x1f2c in libfoo.so" where the function has no name.
std::string function_name(const void* address);

// "a::b<c>(d)::{lambda(int)#1}::operator()(e)" → "a::b::{lambda#1}::operator()".
std::string short_function_name(const std::string& demangled);

}  // namespace tessera
