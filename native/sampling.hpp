// Sampling: the same steps as ops/sampling.py, one row at a time, rows shared out over the team.
#pragma once
#include <nanobind/nanobind.h>

namespace headway {

void bind_sampling(nanobind::module_& m);

}  // namespace headway
