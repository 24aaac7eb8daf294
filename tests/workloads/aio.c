/* POSIX asynchronous I/O.  By hand: on "data" 4 aio_read of 1,000, waited for and collected; 2
 * more through lio_listio; on "out" 3 aio_write of 500, collected.  Collected bytes: 6,000 read,
 * 1,500 written. */
#include "known.h"
#include <aio.h>

static ssize_t finished(struct aiocb *request)
{
    const struct aiocb *list[1] = {request};

    while (aio_error(request) == EINPROGRESS)
        MUST(aio_suspend(list, 1, NULL) == 0 || errno == EINTR);
    MUST(aio_error(request) == 0);
    return aio_return(request);
}

int main(void)
{
    static char data[6][1000];
    struct aiocb requests[6] = {0}, *both[2] = {&requests[4], &requests[5]};
    int from = open("data", O_RDONLY), to = open("out", O_CREAT | O_WRONLY, 0644);

    MUST(from >= 0 && to >= 0);
    for (int i = 0; i < 6; i++)
        requests[i] = (struct aiocb){.aio_fildes = from,
                                     .aio_buf = data[i],
                                     .aio_nbytes = 1000,
                                     .aio_offset = i * 1000,
                                     .aio_lio_opcode = LIO_READ};
    for (int i = 0; i < 4; i++)
        MUST(aio_read(&requests[i]) == 0);
    MUST(lio_listio(LIO_WAIT, both, 2, NULL) == 0);
    for (int i = 0; i < 6; i++)
        MUST(finished(&requests[i]) == 1000);
    for (int i = 0; i < 3; i++) {
        requests[i] = (struct aiocb){
            .aio_fildes = to, .aio_buf = data[i], .aio_nbytes = 500, .aio_offset = i * 500};
        MUST(aio_write(&requests[i]) == 0);
        MUST(finished(&requests[i]) == 500);
    }
    MUST(close(from) == 0);
    MUST(close(to) == 0);
    return 0;
}
