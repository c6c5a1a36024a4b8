// A fast fingerprint of bytes, to find damage in files of packed weights.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headway {

// Changes with every change inside any 8 aligned bytes, and with others but for one chance in 2^64. Depends on the size. No
// defence against someone who means to deceive.
uint64_t checksum(const uint8_t* data, size_t size);

}  // namespace headway
