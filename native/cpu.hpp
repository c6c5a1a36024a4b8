// Which instruction sets this processor has, and the kernels for them.
#pragma once
#include <string>
#include <vector>

#include "types.hpp"

namespace headway {

std::vector<std::string> available_isas();  // best first

// The kernels of one instruction set, or the best for "auto"; throws std::invalid_argument for one this machine lacks.
const Kernels& kernels_for(const std::string& isa);

}  // namespace headway
