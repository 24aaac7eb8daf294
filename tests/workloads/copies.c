/* Bytes that never enter the program.  By hand, from "data" (40,960) to "out": sendfile of 1,000
 * at 0, copy_file_range of 2,000 at 0 to offset 1,000; splice of 3,000 from "data" into a pipe
 * and, of those, 3,000 from the pipe to "out".  1 open and 1 close each. */
#include "known.h"
#include <sys/sendfile.h>

int main(void)
{
    int from = open("data", O_RDONLY), to = open("out", O_CREAT | O_WRONLY, 0644), ends[2];
    off_t offset = 0;
    loff_t in = 0, out = 1000;

    MUST(from >= 0 && to >= 0);
    MUST(sendfile(to, from, &offset, 1000) == 1000);
    MUST(copy_file_range(from, &in, to, &out, 2000, 0) == 2000);
    MUST(pipe(ends) == 0);
    in = 0;
    MUST(splice(from, &in, ends[1], NULL, 3000, 0) == 3000);
    out = 3000;
    MUST(splice(ends[0], NULL, to, &out, 3000, 0) == 3000);
    MUST(close(from) == 0);
    MUST(close(to) == 0);
    return 0;
}
