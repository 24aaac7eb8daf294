// Waits that libstdc++ makes for its caller.  By hand, on the main thread: condition_variable::wait,
// thread::join, future::get, each ended by another thread 20 ms later.
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

static void pause_20_ms()
{
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

int main()
{
    std::mutex mutex;
    std::condition_variable condition;
    bool is_set = false;
    std::thread setter([&] {
        pause_20_ms();
        std::lock_guard<std::mutex> guard(mutex);
        is_set = true;
        condition.notify_one();
    });
    {
        std::unique_lock<std::mutex> guard(mutex);
        condition.wait(guard, [&] { return is_set; });
    }
    setter.join();
    std::thread sleeper(pause_20_ms);
    sleeper.join();
    auto future = std::async(std::launch::async, [] {
        pause_20_ms();
        return 7;
    });
    return future.get() == 7 ? 0 : 1;
}
