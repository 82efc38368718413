// Tests teams on the threads of an OpenMP library.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "cpu/threads/contention.h"
#include "cpu_team.h"
#include "forks.h"
#include "polls.h"
#include "vkrnn/error.h"
#include "vkrnn/openmp.h"

namespace vkrnn::cpu {
namespace {

constexpr const char* kLibrary = "libgomp.so.1";

class OnOpenMP : public testing::Test {
protected:
    void SetUp() override {
#ifdef __SANITIZE_THREAD__
        GTEST_SKIP() << "ThreadSanitizer cannot follow the synchronization of an OpenMP library";
#endif
        test::set_variable("OMP_WAIT_POLICY", "passive");  // its threads use no processor after their work
        void* const library = dlopen(kLibrary, RTLD_LAZY);
        ASSERT_NE(library, nullptr) << "libgomp comes with GCC";
        set_threads_ = reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"));
        ASSERT_NE(set_threads_, nullptr);
        set_threads_(3);
    }
    void TearDown() override { OpenMP::leave(); }

    void (*set_threads_)(int) = nullptr;
    const Threads allowed_{8};
};

std::set<std::thread::id> threads_of(unsigned wanted) {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    run_on_team(wanted, {}, [&](Member& member) {
        {
            const std::lock_guard lock(mutex);
            threads.insert(std::this_thread::get_id());
        }
        EXPECT_EQ(member.barrier(0, member.rank(), member.size(), false), member.size());
        EXPECT_EQ(threads.size(), member.size());
    });
    return threads;
}

TEST_F(OnOpenMP, CallsRunOnItsThreads) {
    const std::set<std::thread::id> own = threads_of(3);
    const std::size_t idle = idle_threads();
    const OpenMP openmp(kLibrary);
    openmp.enter();
    const std::set<std::thread::id> theirs = threads_of(3);
    EXPECT_EQ(theirs.size(), 3u);
    EXPECT_EQ(std::ranges::count_if(theirs, [&](auto id) { return own.contains(id); }), 1) << "the calling thread";
    EXPECT_EQ(threads_of(3), theirs) << "the threads are kept";
    EXPECT_EQ(threads_of(2).size(), 2u);
    EXPECT_EQ(idle_threads(), idle);
    OpenMP::leave();
    EXPECT_EQ(threads_of(3), own);
}

TEST_F(OnOpenMP, UsesNoMoreThreadsThanItHas) {
    const OpenMP openmp(kLibrary);
    EXPECT_EQ(allowed_threads(), 8u);
    openmp.enter();
    EXPECT_EQ(allowed_threads(), 3u);
    set_threads_(1);
    EXPECT_EQ(allowed_threads(), 1u);
    EXPECT_EQ(threads_of(3).size(), 1u);
}

// After work of its own, the library's threads spin and may occupy the processors, so calls run on them. If these
// threads have to wait for processors, too, calls use their own threads again, of which fewer are worthwhile.
TEST_F(OnOpenMP, CallsRunOnItsThreadsWhileTheseOccupyTheProcessors) {
    const std::set<std::thread::id> own = threads_of(3);
    const OpenMP openmp(kLibrary);
    std::set<std::thread::id> theirs;
    const auto work = [&] {
        openmp.enter();
        theirs = threads_of(3);
        run_on_team(3, {}, [](Member& /*member*/) {
            const auto begun = system::thread_time();
            while (system::thread_time() - begun < std::chrono::milliseconds(1)) continue;
        });
        OpenMP::leave();
        openmp_contention.end();  // other programs may have used the processors meanwhile
    };
    work();
    pool_contention.end();  // as above
    EXPECT_EQ(threads_of(3), own);
    pool_contention.end();

    const auto for_long = Contention::Clock::now() + std::chrono::minutes(5);
    pool_contention.add(std::chrono::seconds(1), std::chrono::seconds(4), {}, for_long);
    EXPECT_FALSE(contended()) << "a quarter is not much";
    pool_contention.begin(for_long);
    EXPECT_EQ(threads_of(3), own) << "not yet checked whether they work";
    EXPECT_TRUE(contended());
    work();
    EXPECT_FALSE(contended());
    EXPECT_EQ(threads_of(3), theirs);
    set_threads_(1);
    EXPECT_TRUE(contended()) << "the library has no second thread";
    EXPECT_EQ(threads_of(3), own);
    set_threads_(3);
    EXPECT_EQ(threads_of(3), own) << "the threads have not worked since";
    work();
    openmp_contention.begin(for_long);
    EXPECT_TRUE(contended());
    EXPECT_EQ(threads_of(3), own);
    openmp.enter();
    EXPECT_EQ(threads_of(3), theirs) << "on the caller's request";
    EXPECT_TRUE(contended());
    pool_contention.end();
    openmp_contention.end();
    EXPECT_FALSE(contended());
}

TEST_F(OnOpenMP, OtherThreadsOfTheProcessRunOnOurThreads) {
    const OpenMP openmp(kLibrary);
    openmp.enter();
    std::thread([] {
        EXPECT_EQ(OpenMP::current(), nullptr);
        EXPECT_EQ(allowed_threads(), 8u);
    }).join();
    EXPECT_EQ(OpenMP::current(), &openmp);
}

TEST_F(OnOpenMP, PassesOnAMembersException) {
    const OpenMP openmp(kLibrary);
    openmp.enter();
    for (unsigned thrower = 0; thrower < 3; ++thrower) {
        EXPECT_THROW(run_on_team(3, {},
                                 [&](Member& member) {
                                     if (member.rank() == thrower) throw std::runtime_error("from a member");
                                     while (member.barrier(0, member.rank(), member.size(), false) != 0) {
                                     }
                                 }),
                     std::runtime_error);
        EXPECT_EQ(threads_of(3).size(), 3u) << "the next call";
    }
}

// The child starts no threads here, which QEMU would not allow. tests/integration/test_torch_threads.py has a child
// that does.
TEST_F(OnOpenMP, AForkedChildDoesNotUseIt) {
    const OpenMP openmp(kLibrary);
    openmp.enter();
    EXPECT_EQ(threads_of(3).size(), 3u);
    const pid_t child = fork();
    if (child == 0) {
        _exit(OpenMP::current() == nullptr && allowed_threads() == 8 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

// The library may have started threads for others in the parent, which a child does not have.
TEST_F(OnOpenMP, AForkedChildDoesNotFindItsParentsLibrary) {
    const pid_t child = fork();
    if (child == 0) _exit(OpenMP::loaded() == nullptr ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

TEST_F(OnOpenMP, RoundsAsTheCallingThreadDuringTheCall) {
    const auto upward_members = [] {
        std::atomic<unsigned> found = 0;
        run_on_team(3, {}, [&](Member&) {
            const volatile float one = 1, little = 1e-10F;
            found += one + little > one ? 1 : 0;
        });
        return found.load();
    };
    const OpenMP openmp(kLibrary);
    openmp.enter();
    ASSERT_EQ(threads_of(3).size(), 3u);
    ASSERT_EQ(std::fesetround(FE_UPWARD), 0);
    const unsigned found = upward_members();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(found, 3u);
    std::atomic<unsigned> still = 0;
    EXPECT_TRUE(openmp.run(3, [&](unsigned) {
        const volatile float one = 1, little = 1e-10F;
        still += one + little > one ? 1 : 0;
    }));
    EXPECT_EQ(still, 0u) << "the library's threads are as before";
}

// The end of the parallel region would wait for threads that the child does not have.
TEST_F(OnOpenMP, AChildForkedDuringACallLeavesTheRegion) {
    const OpenMP openmp(kLibrary);
    openmp.enter();
    ASSERT_EQ(threads_of(3).size(), 3u);
    const test::PollsAlways polls;
    pid_t child = -1;
    const auto fork_once = [&] {
        if (child == -1 && (child = fork()) == 0) alarm(test::kHangs);
        return child > 0;  // the parent has seen enough
    };
    int code = 1;
    try {
        run_on_team(3, fork_once, [&](Member& member) {
            while (member.barrier(0, member.rank(), member.size(), false) != 0) {
            }
        });
    } catch (const Interrupted&) {
    } catch (const Forked&) {
        code = 2;
    }
    if (child == 0) _exit(code);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 2);
    EXPECT_EQ(threads_of(3).size(), 3u) << "the next call";
}

TEST(OpenMPLibrary, IsRefusedIfThereIsNone) {
    EXPECT_THROW(OpenMP("/nowhere/libtorch_cpu.so"), DeviceError);
    EXPECT_THROW(OpenMP("libc.so.6"), DeviceError);
}

}  // namespace
}  // namespace vkrnn::cpu
