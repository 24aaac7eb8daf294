// C++ streams.  By hand: "out" written by an ofstream, 100 lines of 10 bytes, flushed by its end;
// "text" of 1,000 bytes read by an ifstream, line by line; a file that is missing does not open.
#include <cstdlib>
#include <fstream>
#include <string>

int main()
{
    {
        std::ofstream out("out");
        for (int i = 0; i < 100; i++)
            out << "ninechars\n";
    }
    std::ifstream in("text");
    std::string line;
    int n = 0;
    while (std::getline(in, line))
        n++;
    std::ifstream missing("missing");
    return n == 100 && !missing ? EXIT_SUCCESS : EXIT_FAILURE;
}
