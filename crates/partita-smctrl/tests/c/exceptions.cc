// A C++ program that links the archive: its exceptions are the C++ runtime's.
#include <libsmctrl.h>
#include <stdexcept>
#include <string>

static void refuse()
{
    uint64_t mask;
    if (libsmctrl_make_mask(&mask, 3, 3) != 0)
        throw std::runtime_error(libsmctrl_error_string());
}

int main()
{
    try {
        refuse();
    } catch (const std::exception &error) {
        return std::string(error.what()).find("empty range") == std::string::npos;
    }
    return 2;
}
