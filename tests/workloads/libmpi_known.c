/* Stands for an MPI library: it polls its connections within a call. */
#include <poll.h>
#include <stdint.h>

int MPI_Allreduce(const void *from, void *to, int count, void *type, void *op, void *comm)
{
    if (from != (void *)1 || to != (void *)2 || count != -3 || type != (void *)4 ||
        op != (void *)5 || comm != (void *)6)
        return 1;
    poll(0, 0, 5);
    return 0;
}

int MPI_Sendrecv(const void *from, int n_from, void *type, int to, int tag, void *into, int n_into,
                 void *type_into, int source, int tag_into, void *comm, void *status)
{
    poll(0, 0, 5);
    return !(from == (void *)1 && n_from == 2 && type == (void *)3 && to == 4 && tag == -5 &&
             into == (void *)6 && n_into == 7 && type_into == (void *)8 && source == 9 &&
             tag_into == -10 && comm == (void *)11 && status == (void *)12);
}
