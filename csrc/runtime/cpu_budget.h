// How many threads this process may use: the affinity mask, and the CPU quota of its control groups.
#pragma once

#include <string>

namespace octavo {

struct CpuBudget {
  int cores_online;    // of the machine
  int cores_affinity;  // that the scheduler may put this process on
  double quota_cores;  // CPU time per wall time that the control groups allow; 0: no limit
  int num_threads;     // the decision
  std::string reason;  // the decision in words
};

CpuBudget cpu_budget();

// The smallest quota, in cores, over the control group of `proc_cgroup` (as /proc/self/cgroup) and its ancestors below
// `mount` (as /sys/fs/cgroup), of version 1 or 2; 0 if none is set. Apart from cpu_budget so that tests can fake it.
double cgroup_quota_cores(const std::string& proc_cgroup, const std::string& mount);

}  // namespace octavo
