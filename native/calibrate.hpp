// What this machine can do right now, measured in a few milliseconds: the limits that speeds are compared with.
#pragma once
#include "thread_pool.hpp"
#include "types.hpp"

namespace headway {

// Bytes a second that the team reads, over and over, of a buffer of this size: from memory when it is far larger than the
// caches, else from the cache that holds it. At least a page for each worker.
double read_bandwidth(ThreadPool& pool, size_t bytes);

// Multiply-adds of int8 a second, counted as two operations each, with everything in registers.
double int8_rate(ThreadPool& pool, const Kernels& kernels);

}  // namespace headway
