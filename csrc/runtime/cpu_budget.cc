#include "runtime/cpu_budget.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace octavo {
namespace {

// The smaller of two quotas, where 0 means no limit.
double tighter(double a, double b) {
  if (a == 0) return b;
  return b == 0 ? a : std::min(a, b);
}

// Version 2: "max 100000" or "150000 100000".
double quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 0;
  std::istringstream text(quota);
  double value = 0;
  return (text >> value) && value > 0 ? value / period : 0;
}

// Version 1: two files; a quota of -1 is no limit.
double quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) return 0;
  return quota / period;
}

// Whether "cpu" is in a list such as ":cpu,cpuacct:".
bool has_cpu_controller(const std::string& controllers) {
  for (size_t at = controllers.find("cpu"); at != std::string::npos; at = controllers.find("cpu", at + 1)) {
    const char before = controllers[at - 1], after = controllers[at + 3];
    if ((before == ':' || before == ',') && (after == ':' || after == ',')) return true;
  }
  return false;
}

// A limit of any ancestor binds too. In a container the path may not exist below the mount; its root then counts.
double quota_up_to_root(const std::string& mount, std::string path, double (*quota)(const std::string&)) {
  double result = quota(mount);
  while (path.size() > 1) {
    result = tighter(result, quota(mount + path));
    path.resize(path.rfind('/'));
  }
  return result;
}

}  // namespace

double cgroup_quota_cores(const std::string& proc_cgroup, const std::string& mount) {
  std::ifstream file(proc_cgroup);
  double result = 0;
  for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first, second - first).append(":"), path = line.substr(second + 1);
    if (controllers == "::") {
      result = tighter(result, quota_up_to_root(mount, path, quota_v2));
    } else if (has_cpu_controller(controllers)) {
      result = tighter(result, quota_up_to_root(mount + "/cpu", path, quota_v1));
      result = tighter(result, quota_up_to_root(mount + "/cpu,cpuacct", path, quota_v1));
    }
  }
  return result;
}

CpuBudget cpu_budget() {
  CpuBudget budget{};
  budget.cores_online = std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t set;
  CPU_ZERO(&set);
  budget.cores_affinity = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : budget.cores_online;
  budget.quota_cores = cgroup_quota_cores("/proc/self/cgroup", "/sys/fs/cgroup");

  // A quota of 1.5 cores runs one thread at full speed or two that are stopped a quarter of the time, and a stopped
  // thread stops all others at the next barrier: so round down.
  budget.num_threads = budget.cores_affinity;
  char reason[160];
  if (budget.quota_cores > 0 && budget.quota_cores < budget.cores_affinity) {
    budget.num_threads = std::max(1, static_cast<int>(std::floor(budget.quota_cores)));
    std::snprintf(reason, sizeof reason, "cgroup quota of %.2f cores, below the %d of the affinity mask",
                  budget.quota_cores, budget.cores_affinity);
  } else {
    std::snprintf(reason, sizeof reason, "affinity mask of %d of %d cores, no tighter cgroup quota",
                  budget.cores_affinity, budget.cores_online);
  }
  budget.reason = reason;
  return budget;
}

}  // namespace octavo
