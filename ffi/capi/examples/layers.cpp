// A KV cache goes layer by layer from one engine to another, in C++17, with handles that release themselves.
//
//   layers shm       over memory that both map
//   layers tcp       over the loopback, as between hosts
//
// Both engines are in this process, which is enough to show the calls; pair.c has two processes.
#include <penstock.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::uint64_t kBlockBytes = 16 * 1024, kLayers = 4, kBlocksOfLayer = 64;
constexpr std::uint64_t kTimeoutMs = 10000;

// A status that is a failure becomes an exception with the words of the library.
void check(penstock_status status, const char *what)
{
    if (status == PENSTOCK_OK)
        return;
    penstock_error error{};
    error.size = sizeof error;
    penstock_last_error(&error);
    std::string words = std::string(what) + ": " + penstock_message(status);
    if (status >= PENSTOCK_INVALID_ARGUMENT)
        words += std::string(": ") + error.text;
    throw std::runtime_error(words);
}

// Any handle. It has one owner, and is released with it.
class Handle {
public:
    Handle() = default;
    Handle(Handle &&other) noexcept : number(std::exchange(other.number, 0)) {}
    Handle &operator=(Handle &&other) noexcept
    {
        std::swap(number, other.number);
        return *this;
    }
    ~Handle() { penstock_release(number); }
    std::uint64_t *out() { return &number; }
    operator std::uint64_t() const { return number; }

private:
    std::uint64_t number = 0;
};

// A struct of options, with its size set and all else zero.
template <typename Options> Options sized()
{
    Options options{};
    options.size = sizeof options;
    return options;
}

Handle start(const char *name, const std::string &transport, const std::string &folder)
{
    std::string yaml = "engine: {directory: " + folder + "}\ntransports: {allow: [" + transport + "]}\n";
    if (transport == "tcp")
        yaml += "session: {listen: [\"127.0.0.1:0\"]}\n";
    auto options = sized<penstock_engine_options>();
    options.name = name;
    options.config_yaml = yaml.c_str();
    Handle engine;
    check(penstock_engine_start(&options, engine.out()), "start");
    return engine;
}

Handle pool_of(const Handle &engine, std::uint32_t rights)
{
    auto options = sized<penstock_pool_options>();
    options.bytes = kLayers * kBlocksOfLayer * kBlockBytes;
    options.block_bytes = kBlockBytes;
    options.label = "kv";
    options.rights = rights;
    Handle pool;
    check(penstock_pool_create(engine, &options, pool.out()), "pool");
    return pool;
}

unsigned char *base_of(const Handle &pool)
{
    auto info = sized<penstock_region_info>();
    check(penstock_region_look(pool, &info), "look");
    return reinterpret_cast<unsigned char *>(static_cast<std::uintptr_t>(info.base));
}

void run(const std::string &transport, const std::string &folder)
{
    const Handle prefill = start("prefill", transport, folder), decode = start("decode", transport, folder);
    const Handle from = pool_of(prefill, PENSTOCK_RIGHTS_NONE), to = pool_of(decode, PENSTOCK_RIGHTS_WRITE);
    Handle arrivals;
    check(penstock_counter_create(to, "layers", arrivals.out()), "counter");
    std::memset(base_of(from), 0x5a, kLayers * kBlocksOfLayer * kBlockBytes);

    std::vector<unsigned char> descriptor(4096);
    std::size_t bytes = 0;
    check(penstock_engine_descriptor(decode, descriptor.data(), descriptor.size(), &bytes), "descriptor");
    Handle peer, remote, counted;
    check(penstock_connect(prefill, descriptor.data(), bytes, kTimeoutMs, peer.out()), "connect");
    check(penstock_peer_region(peer, "kv", kTimeoutMs, remote.out()), "region");
    check(penstock_peer_counter(peer, "layers", kTimeoutMs, counted.out()), "counter");

    // Blocks of this request: every second one there gets a block of here. The plans keep those of here.
    Handle blocks;
    check(penstock_pool_take(from, kBlocksOfLayer / 2, 0, blocks.out()), "take");
    std::vector<std::uint32_t> here(kBlocksOfLayer / 2);
    check(penstock_blocks_indices(blocks, here.data(), here.size(), &bytes), "indices");
    std::vector<penstock_block_pair> pairs;
    for (std::uint32_t i = 0; i < here.size(); i++)
        pairs.push_back({here[i], 2 * i});

    // One plan and one transfer a layer. The receiver counts them.
    std::vector<Handle> transfers;
    const std::uint64_t keep[] = {blocks};
    for (std::uint64_t layer = 0; layer < kLayers; layer++) {
        const penstock_layer begins{0, layer * kBlocksOfLayer * kBlockBytes};
        auto shape = sized<penstock_plan_options>();
        shape.layers = &begins;
        shape.layer_count = 1;
        shape.blocks = pairs.data();
        shape.block_count = pairs.size();
        shape.keep = keep;
        shape.keep_count = 1;
        Handle plan, transfer;
        check(penstock_plan_create(from, remote, &shape, plan.out()), "plan");
        auto how = sized<penstock_submit_options>();
        how.counter = counted;
        check(penstock_submit(peer, plan, &how, transfer.out()), "submit");
        transfers.push_back(std::move(transfer));
    }
    check(penstock_counter_wait(arrivals, kLayers, kTimeoutMs), "all layers");
    for (const Handle &transfer : transfers)
        check(penstock_wait(transfer, kTimeoutMs, nullptr), "wait");

    const unsigned char *there = base_of(to);
    for (std::uint64_t block = 0; block < kLayers * kBlocksOfLayer; block++)
        for (std::uint64_t at : {std::uint64_t{0}, kBlockBytes - 1})
            if (there[block * kBlockBytes + at] != (block % 2 == 0 ? 0x5a : 0))
                throw std::runtime_error("block " + std::to_string(block) + " is not as it should be");
    std::printf("%s: %llu layers of %zu blocks\n", transport.c_str(), static_cast<unsigned long long>(kLayers), pairs.size());
}

} // namespace

int main(int argc, char **argv)
{
    char folder[] = "/tmp/penstock-layers-XXXXXX";
    if (mkdtemp(folder) == nullptr)
        return std::perror(folder), 1;
    int failed = 0;
    try {
        run(argc > 1 ? argv[1] : "shm", folder);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "layers: %s\n", error.what());
        failed = 1;
    }
    std::filesystem::remove_all(folder);
    return failed;
}
