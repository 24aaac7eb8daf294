/* Buffered I/O.  By hand, on "text" of 100 lines of 10 bytes:
 *   read whole with fread (4 of 250), with fgets (100 lines), with getline (100), with fgetc
 *   (1,000 of 1) and with fscanf (100 words): each time 1 fopen, 1 fclose and 1,000 bytes
 *   (fscanf: not fewer than 999); written to "out" with fwrite (10 of 100), fputs (10 of 10),
 *   fprintf (10 of 10), fputc (10 of 1) and fflush: 1 fopen, 1 fclose, 1,210 bytes, all of which
 *   one descriptor's write moved at the fflush. */
#include "known.h"

static FILE *opened(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);

    MUST(file);
    return file;
}

static void read_whole(void)
{
    char data[256], *line = NULL;
    size_t size = 0;
    int n = 0;
    FILE *file = opened("text", "r");

    for (int i = 0; i < 4; i++)
        MUST(fread(data, 1, 250, file) == 250);
    MUST(fclose(file) == 0);

    file = opened("text", "r");
    while (fgets(data, sizeof data, file))
        n++;
    MUST(n == 100);
    MUST(fclose(file) == 0);

    file = opened("text", "r");
    for (n = 0; getline(&line, &size, file) == 10; n++)
        continue;
    MUST(n == 100);
    free(line);
    MUST(fclose(file) == 0);

    file = opened("text", "r");
    for (n = 0; fgetc(file) != EOF; n++)
        continue;
    MUST(n == 1000);
    MUST(fclose(file) == 0);

    file = opened("text", "r");
    for (n = 0; fscanf(file, "%200s", data) == 1; n++)
        continue;
    MUST(n == 100);
    MUST(fclose(file) == 0);
}

static void write_all(void)
{
    char data[100];
    volatile char letter = 'p';
    FILE *file = opened("out", "w");

    memset(data, 'x', sizeof data);
    for (int i = 0; i < 10; i++)
        MUST(fwrite(data, 10, 10, file) == 10);
    for (int i = 0; i < 10; i++)
        MUST(fputs("ninechars\n", file) >= 0);
    for (int i = 0; i < 10; i++)
        MUST(fprintf(file, "%c%08d\n", letter, i) == 10);
    for (int i = 0; i < 10; i++)
        MUST(fputc(letter, file) == letter);
    MUST(fflush(file) == 0);
    MUST(fclose(file) == 0);
}

int main(void)
{
    read_whole();
    write_all();
    return 0;
}
